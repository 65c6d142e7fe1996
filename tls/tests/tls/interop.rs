//! Other implementations: OpenSSL's s_client and s_server, Python's ssl (OpenSSL through another door), curl.
//!
//! Each test is skipped, loudly, where its program is missing; with `EPOXIDE_REQUIRE_INTEROP` set it fails instead.

use crate::client::{GET, HANG};
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::{Case, wait_until};
use epoxide_tls::{ClientAuth, Host, Ktls, Pem, TlsConfig, TlsConnection};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A directory with the PEM files of a world, removed when dropped.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn of(world: &World, name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("epoxide-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let files = Self(dir);
        std::fs::write(files.path("ca.pem"), world.authority.chain_text()).unwrap();
        let alice = world.authority.issue("alice");
        for (name, identity) in [("server", &world.server), ("alice", &alice)] {
            std::fs::write(files.path(&format!("{name}.pem")), identity.chain_text()).unwrap();
            std::fs::write(files.path(&format!("{name}.key")), identity.key_text()).unwrap();
        }
        files
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Is the program there?
pub(crate) fn has(program: &str, argument: &str) -> bool {
    let there = Command::new(program).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    if !there {
        assert!(std::env::var_os("EPOXIDE_REQUIRE_INTEROP").is_none(), "{program} is missing");
        eprintln!("skipped: {program} is missing");
    }
    there
}

/// A child whose output is collected while it runs.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    output: Receiver<String>,
    all: String,
}

impl Program {
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, output) = channel();
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for mut stream in streams {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut chunk) {
                    let _ = tell.send(String::from_utf8_lossy(&chunk[..n]).into_owned());
                }
            });
        }
        let stdin = child.stdin.take();
        Self { child, stdin, output, all: String::new() }
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Waits until it has said `text`.
    pub(crate) fn expect(&mut self, text: &str) {
        while !self.all.contains(text) {
            match self.output.recv_timeout(HANG) {
                Ok(part) => self.all += &part,
                Err(_) => panic!("no {text:?} in:\n{}", self.all),
            }
        }
    }

    /// Where `s_server` listens: port 0 was asked for, and it says which one it got.
    pub(crate) fn accept_addr(&mut self) -> SocketAddr {
        self.expect("ACCEPT ");
        self.expect("\n");
        let line = self.all.lines().find(|line| line.starts_with("ACCEPT ")).unwrap();
        line["ACCEPT ".len()..].trim().parse().unwrap()
    }

    /// Waits for its end: all that it said.
    pub(crate) fn end(mut self) -> String {
        drop(self.stdin.take());
        assert!(wait_until(HANG, || self.child.try_wait().unwrap().is_some()), "it hangs:\n{}", self.all);
        self.all.extend(self.output.iter());
        std::mem::take(&mut self.all)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssl_s_client() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "s_client");
    let config = world.options().client_auth(ClientAuth::Optional, world.authority.chain()).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let addr = server.addr().to_string();
    let (ca, alice, key) = (files.path("ca.pem"), files.path("alice.pem"), files.path("alice.key"));
    for version in ["-tls1_2", "-tls1_3"] {
        let session = files.path(&format!("session{version}"));
        let common = [
            "s_client",
            "-connect",
            &addr,
            "-CAfile",
            &ca,
            "-verify_return_error",
            "-servername",
            "localhost",
            version,
        ];
        let mut first =
            Program::start("openssl", &[&common[..], &["-sess_out", &session, "-cert", &alice, "-key", &key]].concat());
        first.type_in(&GET.replace('\r', "").replace('\n', "\r\n"));
        first.expect("tls-ok");
        first.type_in("\r\nQ\n");
        let text = first.end();
        assert!(text.contains("Verify return code: 0 (ok)") && text.contains("New, "), "{text}");
        ends.recv_timeout(HANG).unwrap().unwrap();
        let mut second =
            Program::start("openssl", &[&common[..], &["-sess_in", &session, "-cert", &alice, "-key", &key]].concat());
        second.type_in(GET);
        second.expect("tls-ok");
        second.type_in("\r\nQ\n");
        let text = second.end();
        assert!(text.contains("Reused, "), "not resumed with {version}:\n{text}");
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

/// A ticket of the lax default host, shown at a strict one.
#[test]
fn a_ticket_of_one_host_is_no_good_at_another() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "tickets");
    let strict = Host::new(world.server.chain(), world.server.key());
    let strict = strict.client_auth(ClientAuth::Required, world.authority.chain());
    let config = world.options().host("strict.example", strict).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let (addr, ca) = (server.addr().to_string(), files.path("ca.pem"));
    for version in ["-tls1_2", "-tls1_3"] {
        let session = files.path(&format!("ticket{version}"));
        let start = |name: &str, option: &str| {
            let arguments =
                ["s_client", "-connect", &addr, "-CAfile", &ca, version, "-servername", name, option, &session];
            let mut client = Program::start("openssl", &arguments);
            client.type_in(GET);
            client
        };
        for option in ["-sess_out", "-sess_in"] {
            let mut client = start("localhost", option);
            client.expect("tls-ok");
            client.type_in("\r\nQ\n");
            let text = client.end();
            assert_eq!(text.contains("Reused, "), option == "-sess_in", "control: {text}");
            ends.recv_timeout(HANG).unwrap().unwrap();
        }
        let client = start("strict.example", "-sess_in");
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(error.to_string().contains("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "{version}: {error}");
        let text = client.end();
        assert!(!text.contains("tls-ok") && !text.contains("Reused, "), "{text}");
    }
}

#[test]
fn openssl_s_client_renews_keys_and_may_not_renegotiate() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "keys");
    // The kernel keeps its keys.
    let config = world.options().ktls(Ktls::Off).build().unwrap();
    let (server, ends) = serve(&case, &config, |mut conn| async move {
        while let Some(data) = conn.read_idle().await? {
            if data.starts_with(b"renew") {
                conn.update_keys(true)?;
            }
            conn.stage(b"got ")?;
            conn.stage(&data)?;
            conn.flush().await?;
        }
        Ok(())
    });
    let (addr, ca) = (server.addr().to_string(), files.path("ca.pem"));
    let common = ["s_client", "-connect", &addr, "-CAfile", &ca, "-msg", "-servername", "localhost"];
    let mut client = Program::start("openssl", &[&common[..], &["-tls1_3"]].concat());
    client.type_in("one\n");
    client.expect("got one");
    // `K`: new keys, and the peer's too; `k`: new keys alone. Each on a line of its own.
    for (command, word) in [("K\n", "two"), ("k\n", "three"), ("K\n", "four"), ("", "renew"), ("K\n", "five")] {
        client.type_in(command);
        client.expect("");
        // sleep: s_client reads a command only at the start of what it reads at once.
        std::thread::sleep(std::time::Duration::from_millis(150));
        client.type_in(&format!("{word}\n"));
        client.expect(&format!("got {word}"));
    }
    assert!(client.all.contains(">>> TLS 1.3, Handshake [length 0005], KeyUpdate"), "{}", client.all);
    assert!(client.all.matches("<<< TLS 1.3, Handshake [length 0005], KeyUpdate").count() >= 3, "{}", client.all);
    client.type_in("Q\n");
    let text = client.end();
    assert!(text.contains("Alert [length 0002], warning close_notify"), "{text}");
    ends.recv_timeout(HANG).unwrap().unwrap();

    let mut client = Program::start("openssl", &[&common[..], &["-tls1_2"]].concat());
    client.type_in("one\n");
    client.expect("got one");
    client.type_in("R\n");
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(error.to_string().contains("NO_RENEGOTIATION"), "{error}");
    client.end();
}

/// `s_server -rev` sends every line back, the other way round.
pub(crate) async fn assert_reverses(conn: &mut TlsConnection) {
    conn.send_all(b"stressed\n").await.unwrap();
    let mut back = Vec::new();
    while !back.ends_with(b"\n") {
        back.extend_from_slice(&conn.read().await.unwrap().unwrap());
    }
    assert_eq!(back, b"desserts\n");
}

#[test]
fn openssl_s_server() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "s_server");
    for version in ["-tls1_2", "-tls1_3"] {
        let mut server = Program::start(
            "openssl",
            &[
                "s_server",
                "-accept",
                "127.0.0.1:0",
                "-cert",
                &files.path("server.pem"),
                "-key",
                &files.path("server.key"),
                "-CAfile",
                &files.path("ca.pem"),
                "-Verify",
                "1",
                "-rev",
                version,
            ],
        );
        let addr = server.accept_addr();
        let alice = (Pem::path(files.path("alice.pem")), Pem::path(files.path("alice.key")));
        let config = TlsConfig::client()
            .roots(Pem::path(files.path("ca.pem")))
            .client_certificate(alice.0, alice.1)
            .build()
            .unwrap();
        let resumed: Vec<_> = (0..3)
            .map(|_| {
                epoxide::block_on(async {
                    let mut conn = config.connect(addr, "localhost").await.unwrap();
                    assert_reverses(&mut conn).await;
                    conn.shutdown().await.unwrap();
                    conn.facts().resumed()
                })
            })
            .collect();
        assert_eq!(resumed, [false, true, true], "{version}");
    }
    drop(case);
}

#[test]
fn pythons_ssl() {
    let case = Case::start();
    if !has("python3", "--version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "python");
    let (server, ends) = serve(&case, &world.options().alpn(["http/1.1"]).build().unwrap(), crate::servers::echo);
    let script = r#"
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
context.set_alpn_protocols(["h2", "http/1.1"])
sent = bytes(i % 251 for i in range(300000))
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context.maximum_version = version
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30) as raw:
        with context.wrap_socket(raw, server_hostname="localhost") as client:
            back = b""
            for at in range(0, len(sent), 10000):
                client.sendall(sent[at:at + 10000])
                while len(back) < at + 10000:
                    back += client.recv(65536)
            assert back == sent and client.selected_alpn_protocol() == "http/1.1"
            print("ok", client.version())
            client.unwrap()
"#;
    let port = server.addr().port().to_string();
    let text = Program::start("python3", &["-c", script, &port, &files.path("ca.pem")]).end();
    assert_eq!(text, "ok TLSv1.2\nok TLSv1.3\n");
    for _ in 0..2 {
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

#[test]
fn curl() {
    let case = Case::start();
    if !has("curl", "--version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "curl");
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let port = server.addr().port();
    let at = format!("localhost:{port}:127.0.0.1");
    let url = format!("https://localhost:{port}/");
    let ca = files.path("ca.pem");
    let curl = |more: &[&str]| {
        let common = ["-s", "-S", "--resolve", &at, &url, &url];
        Program::start("curl", &[&common[..], more].concat()).end()
    };
    for version in [&["--cacert", &*ca, "--tls-max", "1.2"][..], &["--cacert", &ca, "--tlsv1.3"]] {
        assert_eq!(curl(version).trim(), "tls-oktls-ok");
    }
    assert!(curl(&[]).contains("SSL certificate problem"), "control: an authority that it does not know");
    ask_once(&world.client().build().unwrap(), server.addr(), "localhost").unwrap();
}
