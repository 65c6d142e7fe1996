//! The command lines that server samples share.
//!
//! State: none. Thread class: pure.

use clap::Args;
use epoxide::workers::WorkersConfig;
use epoxide::{Builder, Runtime};
use std::net::SocketAddr;

/// Options common to the server samples; each has an environment variable too.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Address to listen on: HOST or HOST:PORT.
    #[arg(long, default_value = "127.0.0.1", value_parser = tcp)]
    pub addr: String,
    /// Port, when --addr names none.
    #[arg(long, env = "PLAYGROUND_PORT", default_value_t = 8080)]
    pub port: u16,
    /// Reactors, one thread each; 0 is one per CPU.
    #[arg(long, env = "PLAYGROUND_REACTORS", default_value_t = 0)]
    pub reactors: usize,
}

fn tcp(addr: &str) -> Result<String, &'static str> {
    if addr.starts_with("unix:") { Err("the samples serve TCP: HOST or HOST:PORT") } else { Ok(addr.to_owned()) }
}

/// HOST:PORT of another server, as the options that name one take it.
///
/// # Errors
/// What it looks like, for what looks otherwise.
pub fn host_and_port(addr: &str) -> Result<String, String> {
    let right = addr.parse::<SocketAddr>().is_ok()
        || addr.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(['/', ':', '[', ']', ' ']) && port.parse::<u16>().is_ok()
        });
    if right { Ok(addr.to_owned()) } else { Err("HOST:PORT, without http://".to_owned()) }
}

impl ServerArgs {
    /// As many reactors as they say, nothing else.
    pub fn builder(&self) -> Builder {
        let mut server = Runtime::builder();
        if self.reactors > 0 {
            server.reactors(self.reactors);
        }
        server
    }

    /// Where to listen, as text.
    pub fn target(&self) -> String {
        if self.addr.parse::<SocketAddr>().is_ok() || self.addr.contains(':') && !self.addr.contains("::") {
            self.addr.clone()
        } else if self.addr.contains(':') {
            format!("[{}]:{}", self.addr.trim_matches(['[', ']']), self.port)
        } else {
            format!("{}:{}", self.addr, self.port)
        }
    }
}

/// Options of the samples that give one fixed answer.
#[derive(Args, Clone, Debug)]
pub struct AnswerArgs {
    /// Where and how wide.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The body: 'ok', a number of bytes, or 'bench' for the answer that the benchmark's peers give.
    #[arg(long, env = "PLAYGROUND_BODY", default_value = "ok")]
    pub body: String,
}

/// Options of the samples that answer from the async workers.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Async workers; 0 is one per CPU.
    #[arg(long, env = "PLAYGROUND_WORKERS", default_value_t = 0)]
    pub workers: usize,
}

impl WorkerArgs {
    /// Tells the server.
    pub fn set_up(&self, server: &mut Builder) {
        server.workers(WorkersConfig { threads: self.workers, ..WorkersConfig::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::{ServerArgs, host_and_port};

    #[test]
    fn the_target_takes_a_host_with_and_without_a_port() {
        let target = |addr: &str| ServerArgs { addr: addr.into(), port: 81, reactors: 0 }.target();
        assert_eq!(target("127.0.0.1"), "127.0.0.1:81");
        assert_eq!(target("127.0.0.1:9"), "127.0.0.1:9");
        assert_eq!(target("localhost:9"), "localhost:9");
        assert_eq!(target("::"), "[::]:81");
        assert_eq!(target("[::1]"), "[::1]:81");
        assert_eq!(target("[::1]:9"), "[::1]:9");
    }

    #[test]
    fn another_server_is_a_host_and_a_port() {
        for good in ["127.0.0.1:80", "[::1]:80", "localhost:80", "a-name.invalid:65535"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in
            ["", ":80", "localhost", "localhost:", "localhost:65536", "http://a:80", "::1:80", "[::1]", "unix:/a:1"]
        {
            assert!(host_and_port(bad).is_err_and(|why| why.contains("HOST:PORT")), "{bad}");
        }
    }
}
