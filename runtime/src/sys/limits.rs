//! getrlimit(2): how many descriptors the process may hold.
//!
//! Job: read and raise RLIMIT_NOFILE. State owned: none. Thread class: any thread.
//! Laws kept: 16 (the default of `max_connections` comes from here).

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::error::SysError;

/// The soft and the hard limit on open descriptors.
pub(crate) fn descriptor_limit() -> io::Result<(u64, u64)> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?)
}

/// Raises the soft limit to the hard one (which needs no privilege) and returns the soft limit that
/// holds now.
pub(crate) fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = descriptor_limit()?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
            .map_err(|errno| SysError::wrap("raise RLIMIT_NOFILE to", hard, errno.into()))?;
    }
    Ok(descriptor_limit()?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let (soft, hard) = descriptor_limit().unwrap();
        assert!(soft > 0 && soft <= hard);
        assert_eq!(raise_descriptor_limit().unwrap(), hard);
        assert_eq!(descriptor_limit().unwrap(), (hard, hard));
    }
}
