//! sched_setscheduler(2): who takes a CPU from whom.
//!
//! Job: a thread that does not preempt (SCHED_BATCH), and threads that do not inherit that. State owned: none.
//! Thread class: any thread, for itself. Laws kept: none.
//!
//! A batch thread runs as often as any other of its nice value; only its wake does not interrupt who is running on its
//! CPU (sched(7)). With it B4 takes 0.87 x the CPU of naps alone; neither nix nor rustix has the call.

#![allow(unsafe_code)]

/// The calling thread no longer preempts the others, if it is an ordinary one (SCHED_OTHER): real-time ones stay.
pub(crate) fn give_way() {
    if policy(THIS_THREAD) == libc::SCHED_OTHER {
        set_policy(libc::SCHED_BATCH);
    }
}

/// For threads that are started by whoever happens to need them: nothing inherited from one that gives way.
pub(crate) fn inherit_nothing() {
    if policy(THIS_THREAD) == libc::SCHED_BATCH && policy(first_thread()) != libc::SCHED_BATCH {
        set_policy(libc::SCHED_OTHER);
    }
}

const THIS_THREAD: libc::pid_t = 0;

fn first_thread() -> libc::pid_t {
    nix::unistd::getpid().as_raw()
}

/// -1, which is no policy, where the kernel will not say.
fn policy(thread: libc::pid_t) -> libc::c_int {
    // SAFETY: takes a number and gives one.
    unsafe { libc::sched_getscheduler(thread) }
}

/// Refused (by a sandbox): the thread stays as it is, which costs time and nothing else.
fn set_policy(policy: libc::c_int) {
    // SAFETY: all of a `sched_param` are integers, for which zero is a value; and the one value these policies take.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads `param`, which lives until it returns.
    let _ = unsafe { libc::sched_setscheduler(THIS_THREAD, policy, &raw const param) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_gives_way_is_a_batch_thread_and_its_children_need_not_be() {
        std::thread::spawn(|| {
            assert_eq!(policy(THIS_THREAD), libc::SCHED_OTHER);
            give_way();
            assert_eq!(policy(THIS_THREAD), libc::SCHED_BATCH);
            std::thread::spawn(|| {
                assert_eq!(policy(THIS_THREAD), libc::SCHED_BATCH, "inherited");
                inherit_nothing();
                assert_eq!(policy(THIS_THREAD), libc::SCHED_OTHER);
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
    }
}
