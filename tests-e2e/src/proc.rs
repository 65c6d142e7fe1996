//! Job: what /proc says about this process: descriptors, CPU time, descriptor numbers.
//! State owned: none. Thread class: any thread.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The descriptors of process `pid` ("self" for this one) with what they point at, without the one
/// that reads the directory.
pub fn our_fds(pid: &str) -> io::Result<Vec<(i32, String)>> {
    let mut fds = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let Ok(number) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        // One that closed meanwhile is no descriptor of ours any more.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        let own_listing = target.starts_with("/proc/") && target.ends_with("/fd");
        if !own_listing {
            fds.push((number, target));
        }
    }
    fds.sort();
    Ok(fds)
}

/// The kernel's id of the calling thread.
pub fn current_tid() -> u32 {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    let tid = link.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse().ok());
    tid.unwrap_or_default()
}

/// The RLIMIT_NOFILE that leaves exactly `free` descriptor numbers unused, holes included.
pub fn free_fd_limit(free: u64) -> io::Result<u64> {
    let used: Vec<i32> = our_fds("self")?.into_iter().map(|(number, _)| number).collect();
    let mut left = free;
    let mut number = 0;
    while left > 0 {
        if !used.contains(&number) {
            left -= 1;
        }
        number += 1;
    }
    Ok(u64::try_from(number).unwrap_or_default())
}

/// A lowered RLIMIT_NOFILE. Dropping it puts the old one back, also when the test fails.
#[derive(Debug)]
#[must_use = "dropping it lifts the limit"]
pub struct FdLimit(u64, u64);

impl FdLimit {
    /// Leaves exactly `free` descriptor numbers unused.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn lower_to_free(free: u64) -> Self {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit is readable");
        let lowered = free_fd_limit(free).expect("our descriptors are listed");
        setrlimit(Resource::RLIMIT_NOFILE, lowered, hard).expect("a limit may be lowered");
        Self(soft, hard)
    }
}

impl Drop for FdLimit {
    fn drop(&mut self) {
        let lifted = setrlimit(Resource::RLIMIT_NOFILE, self.0, self.1);
        assert!(lifted.is_ok() || std::thread::panicking(), "the descriptor limit cannot be lifted");
    }
}

/// Bytes of memory that this process has resident (proc_pid_statm(5)).
pub fn resident_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.unwrap_or_default() * 4096)
}

/// The CPU time of one thread. The file is opened once, so it can be read when descriptors ran out.
#[derive(Debug)]
pub struct ThreadCpu(File);

impl ThreadCpu {
    /// Watches thread `tid` of this process.
    pub fn open(tid: u32) -> io::Result<Self> {
        File::open(Path::new("/proc/self/task").join(tid.to_string()).join("stat")).map(Self)
    }

    /// User and system time so far, in seconds (the kernel counts in 1/100 s).
    pub fn seconds(&mut self) -> io::Result<f64> {
        let mut text = String::new();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.read_to_string(&mut text)?;
        // The second field is the name in brackets and may hold anything, spaces too; utime and
        // stime are fields 14 and 15 (proc_pid_stat(5)).
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }

    /// The share of one core the thread uses over `span`.
    pub fn share_over(&mut self, span: std::time::Duration) -> io::Result<f64> {
        let before = self.seconds()?;
        let started = std::time::Instant::now();
        // sleep: the span that is measured.
        std::thread::sleep(span);
        Ok((self.seconds()? - before) / started.elapsed().as_secs_f64())
    }
}
