//! sched_setaffinity(2): which cores the calling thread may run on.
//!
//! Job: pin, list, save and restore. State owned: none. Thread class: any thread, for itself.
//! Laws kept: none. Core numbers up to 1023 (the size of glibc's `cpu_set_t`).

use std::io;

use nix::sched::{self, CpuSet};
use nix::unistd::Pid;

use super::error::SysError;

/// A saved set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Affinity(CpuSet);

/// Binds the calling thread to `cores`. An empty list, or one with no core that exists and is
/// allowed, is EINVAL.
pub(crate) fn pin_current(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core).map_err(|errno| SysError::wrap("pin to core", core, errno.into()))?;
    }
    restore(&Affinity(set)).map_err(|error| SysError::wrap("pin to cores", format_args!("{cores:?}"), error))
}

/// The cores the calling thread may run on, in ascending order.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    let Affinity(set) = save()?;
    Ok((0..CpuSet::count()).filter(|&core| set.is_set(core) == Ok(true)).collect())
}

/// Remembers the calling thread's set.
pub(crate) fn save() -> io::Result<Affinity> {
    Ok(Affinity(sched::sched_getaffinity(Pid::from_raw(0))?))
}

/// Gives the calling thread the set again.
pub(crate) fn restore(affinity: &Affinity) -> io::Result<()> {
    Ok(sched::sched_setaffinity(Pid::from_raw(0), &affinity.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::error::errno_of;

    #[test]
    fn pinning_narrows_and_restoring_widens_again() {
        let before = save().unwrap();
        let cpus = allowed_cpus().unwrap();
        assert!(!cpus.is_empty());
        let one = *cpus.last().unwrap();
        pin_current(&[one]).unwrap();
        assert_eq!(allowed_cpus().unwrap(), [one]);
        restore(&before).unwrap();
        assert_eq!(allowed_cpus().unwrap(), cpus);
        assert_eq!(save().unwrap(), before);
    }

    #[test]
    fn cores_that_do_not_exist_are_an_error_not_a_panic() {
        for cores in [&[][..], &[usize::MAX], &[1023]] {
            if cores == [1023] && allowed_cpus().unwrap().contains(&1023) {
                continue;
            }
            let error = pin_current(cores).unwrap_err();
            assert_eq!(errno_of(&error), Some(libc::EINVAL), "{error}");
        }
    }
}
