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

/// What a thread of the process may run on when nobody has pinned it: the set of the process's first thread together
/// with the calling one's. A thread inherits the set of its creator, so a pool that is grown from a pinned thread asks
/// for this one; and neither set alone will do, because either thread may be pinned.
pub(crate) fn process_wide() -> io::Result<Affinity> {
    let Affinity(mut set) = save()?;
    let first = sched::sched_getaffinity(nix::unistd::getpid())?;
    for core in 0..CpuSet::count() {
        if first.is_set(core) == Ok(true) {
            set.set(core)?;
        }
    }
    Ok(Affinity(set))
}

/// Lets the calling thread run wherever the process may: for threads that serve the whole process, and inherit nothing from
/// the one that happened to start them. Where the kernel will not have it, the thread stays where it is.
pub(crate) fn unpin_current() {
    let _ = process_wide().and_then(|wide| restore(&wide));
}

/// How many CPUs are in [`process_wide`]; 1 where the kernel will not say.
pub(crate) fn process_cpus() -> usize {
    let Ok(Affinity(set)) = process_wide() else { return 1 };
    (0..CpuSet::count()).filter(|&core| set.is_set(core) == Ok(true)).count().max(1)
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
    fn the_process_wide_set_is_not_narrowed_by_a_pinned_thread() {
        let all = save().unwrap();
        std::thread::spawn(move || {
            pin_current(&[*allowed_cpus().unwrap().last().unwrap()]).unwrap();
            let wide = process_wide().unwrap();
            restore(&wide).unwrap();
            assert_eq!(save().unwrap(), all);
            pin_current(&[*allowed_cpus().unwrap().last().unwrap()]).unwrap();
            unpin_current();
            assert_eq!(save().unwrap(), all);
        })
        .join()
        .unwrap();
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
