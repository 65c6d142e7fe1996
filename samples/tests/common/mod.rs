//! Runs a sample as a program, as a user does. State: the child. Thread class: any thread.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A sample that runs until it is stopped or dropped.
pub(crate) struct Sample {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) first_line: String,
    pub(crate) addr: SocketAddr,
}

impl Sample {
    /// Starts it on a port of the kernel's choice and waits for its one line.
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        Self::start_with(program, args, Stdio::null(), Stdio::inherit())
    }

    /// The same, with a standard error for [`stderr`](Self::stderr).
    #[allow(dead_code, reason = "each test file has this module to itself")]
    pub(crate) fn start_heard(program: &str, args: &[&str]) -> Self {
        Self::start_with(program, args, Stdio::null(), Stdio::piped())
    }

    /// The same, with a standard input to type into.
    #[allow(dead_code, reason = "each test file has this module to itself")]
    pub(crate) fn start_typing(program: &str, args: &[&str]) -> (Self, ChildStdin) {
        let mut sample = Self::start_with(program, args, Stdio::piped(), Stdio::inherit());
        let typed = sample.child.stdin.take().expect("its standard input is piped");
        (sample, typed)
    }

    fn start_with(program: &str, args: &[&str], stdin: Stdio, stderr: Stdio) -> Self {
        let mut child = Command::new(program)
            .args(["--addr", "127.0.0.1", "--port", "0", "--reactors", "2"])
            .args(args)
            .stdin(stdin)
            .stderr(stderr)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the sample starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its output is piped"));
        let mut first_line = String::new();
        stdout.read_line(&mut first_line).expect("it says where it listens");
        let addr = first_line
            .split([' ', ';', ','])
            .find_map(|word| word.parse::<SocketAddr>().ok())
            .unwrap_or_else(|| panic!("no address in {first_line:?}"));
        Self { child, stdout, first_line, addr }
    }

    /// What it has to complain about; once.
    #[allow(dead_code, reason = "each test file has this module to itself")]
    pub(crate) fn stderr(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().expect("its standard error is piped, and nobody has it"))
    }

    /// Its next line.
    #[allow(dead_code, reason = "each test file has this module to itself")]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it says something");
        line
    }

    /// The kernel's id of the program.
    #[allow(dead_code, reason = "each test file has this module to itself")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).expect("the sample accepts");
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Ctrl-C.
    #[allow(dead_code, reason = "not every test file does")]
    pub(crate) fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("it still runs");
    }

    /// Ctrl-C; the rest of its output.
    #[allow(dead_code, reason = "not every test file does")]
    pub(crate) fn stop(self) -> String {
        self.interrupt();
        self.stopped()
    }

    /// Ctrl-C, with nobody at the other end of its standard output; how it ended.
    #[allow(dead_code, reason = "not every test file does")]
    pub(crate) fn stop_unheard(mut self) -> ExitStatus {
        let (reader, _) = std::io::pipe().expect("a pipe");
        self.stdout = BufReader::new(ChildStdout::from(OwnedFd::from(reader)));
        self.interrupt();
        self.child.wait().unwrap()
    }

    /// After an interrupt: the rest of its output.
    #[allow(dead_code, reason = "not every test file does")]
    pub(crate) fn stopped(mut self) -> String {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `--help` of a sample.
#[allow(dead_code, reason = "not every test file does")]
pub(crate) fn help(program: &str) -> String {
    let output = Command::new(program).arg("--help").output().expect("the sample runs");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}
