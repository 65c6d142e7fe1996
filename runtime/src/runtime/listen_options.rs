//! How a listener listens.
//!
//! Job: the public options and their validation. State: none. Thread class: pure. Law: 16.

/// How a listener listens.
///
/// What cannot work is refused by `build()` or [`Listener::bind`](crate::Listener::bind), with an error that names the
/// field and what it may be.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::{ListenAddr, ListenOptions, Runtime};
///
/// let few = ListenOptions { max_connections: Some(10), ..ListenOptions::default() };
/// let mut server = Runtime::builder();
/// server.reactors(1).listen(ListenAddr::new("127.0.0.1:0").options(few), |_conn| async {});
/// let runtime = server.build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Connections that the kernel completes before they are accepted, per reactor, 0 (room for one) or more; listen(2) caps
    /// it at `net.core.somaxconn`. Default 1024.
    pub backlog: i32,
    /// Connections of this listener that may exist at a time, over all reactors and lingering ones included; past it
    /// accepting pauses. At least 1. Default: no limit of its own.
    pub max_connections: Option<usize>,
    /// Let other processes of this user listen on the same port: connections are spread over all of them. Default
    /// false: a port that somebody listens on is an error. TCP only.
    pub share_port: bool,
    /// Permission bits of a unix path, at most `0o777`, for example `0o660`; they are set before anybody can connect
    /// (unix(7): connecting takes write permission). Unix paths only. Default: what the umask leaves.
    pub mode: Option<u32>,
    /// Does `[::]` take IPv6 only (true), or IPv4 as well (false)? IPv6 addresses only; of a name's addresses those are
    /// taken. Default: IPv4 as well, unless `net.ipv6.bindv6only` says otherwise.
    pub v6only: Option<bool>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 1024, max_connections: None, share_port: false, mode: None, v6only: None }
    }
}

/// What the options are for.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Addresses, `v6` all of them.
    Tcp { v6: bool },
    /// A path, or an abstract name.
    Unix { path: bool },
}

impl ListenOptions {
    /// Refuses what cannot work, by name.
    pub(super) fn check(&self, kind: Kind) -> Result<(), String> {
        let refuse = |field: &str, value: String, must: &str| Err(format!("ListenOptions::{field} is {value}: {must}"));
        if self.backlog < 0 {
            // listen(2) takes it for the most there can be.
            return refuse("backlog", self.backlog.to_string(), "it must be 0 or more");
        }
        if self.max_connections == Some(0) {
            let must = "nothing could be accepted; it must be 1 or more, or left out for no limit";
            return refuse("max_connections", "0".into(), must);
        }
        if let Some(mode) = self.mode {
            let value = format!("{mode:#o}");
            if mode > 0o777 {
                return refuse("mode", value, "it must be 0 to 0o777");
            }
            if !matches!(kind, Kind::Unix { path: true }) {
                return refuse("mode", value, "it must be left out, as only a unix path has permissions");
            }
        }
        if self.share_port && matches!(kind, Kind::Unix { .. }) {
            return refuse("share_port", "true".into(), "it must be false, as only TCP has ports");
        }
        if let Some(v6only) = self.v6only
            && !matches!(kind, Kind::Tcp { v6: true })
        {
            return refuse("v6only", v6only.to_string(), "it must be left out, as this is no IPv6 address");
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KINDS: [Kind; 4] =
        [Kind::Tcp { v6: false }, Kind::Tcp { v6: true }, Kind::Unix { path: true }, Kind::Unix { path: false }];

    /// In the order of `KINDS`: what is taken there.
    #[test]
    fn each_option_is_taken_where_it_works_and_refused_by_name_elsewhere() {
        let default = ListenOptions::default;
        let mode = |mode| ListenOptions { mode: Some(mode), ..default() };
        let (anywhere, nowhere, paths) = ([true; 4], [false; 4], [false, false, true, false]);
        let table = [
            ("", default(), anywhere),
            ("backlog is -1", ListenOptions { backlog: -1, ..default() }, nowhere),
            ("backlog", ListenOptions { backlog: 0, ..default() }, anywhere),
            ("max_connections is 0", ListenOptions { max_connections: Some(0), ..default() }, nowhere),
            ("max_connections", ListenOptions { max_connections: Some(1), ..default() }, anywhere),
            ("mode is 0o1000", mode(0o1000), nowhere),
            ("mode is 0o777", mode(0o777), paths),
            ("mode is 0o0", mode(0), paths),
            ("share_port is true", ListenOptions { share_port: true, ..default() }, [true, true, false, false]),
            ("v6only is true", ListenOptions { v6only: Some(true), ..default() }, [false, true, false, false]),
            ("v6only is false", ListenOptions { v6only: Some(false), ..default() }, [false, true, false, false]),
        ];
        for (named, options, taken) in table {
            for (kind, taken) in KINDS.into_iter().zip(taken) {
                let checked = options.check(kind);
                assert_eq!(checked.is_ok(), taken, "{options:?}: {checked:?}");
                let said = checked.err().is_none_or(|text| text.starts_with(&format!("ListenOptions::{named}: ")));
                assert!(said, "{options:?}");
            }
        }
    }
}
