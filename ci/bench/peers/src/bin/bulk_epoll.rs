//! The floor of B9: one thread, edge-triggered epoll, one send after the other until the socket is full, no runtime at all.
use peers::*;
use std::os::fd::{AsRawFd, IntoRawFd};
struct Conn { heads: Heads, left: usize, answers: usize }
fn main() {
    let all = bulk();
    let l = std::net::TcpListener::bind(addr()).unwrap();
    l.set_nonblocking(true).unwrap();
    let ep = unsafe { libc::epoll_create1(0) };
    let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: l.as_raw_fd() as u64 };
    unsafe { libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, l.as_raw_fd(), &mut ev) };
    let mut conns: Vec<Option<Conn>> = Vec::new();
    let mut buf = vec![0u8; 16384];
    let mut evs = vec![libc::epoll_event { events: 0, u64: 0 }; 1024];
    loop {
        let n = unsafe { libc::epoll_wait(ep, evs.as_mut_ptr(), 1024, -1) };
        for e in &evs[..n.max(0) as usize] {
            let fd = e.u64 as i32;
            if fd == l.as_raw_fd() {
                while let Ok((s, _)) = l.accept() {
                    s.set_nonblocking(true).unwrap();
                    s.set_nodelay(true).unwrap();
                    let fd = s.into_raw_fd();
                    if conns.len() <= fd as usize { conns.resize_with(fd as usize + 1, || None); }
                    conns[fd as usize] = Some(Conn { heads: Heads::default(), left: 0, answers: 0 });
                    let mut ev = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32, u64: fd as u64 };
                    unsafe { libc::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, &mut ev) };
                }
                continue;
            }
            let Some(c) = conns[fd as usize].as_mut() else { continue };
            let mut over = e.events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
            while !over && e.events & libc::EPOLLIN as u32 != 0 {
                let r = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), 0) };
                if r > 0 { c.answers += c.heads.feed(&buf[..r as usize]); }
                over = r == 0;
                if (r.max(0) as usize) < buf.len() { break }
            }
            while !over && (c.left > 0 || c.answers > 0) {
                if c.left == 0 { c.answers -= 1; c.left = all.len(); }
                let rest = &all[all.len() - c.left..];
                let r = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
                if r < 0 { break }
                c.left -= r as usize;
            }
            if over {
                conns[fd as usize] = None;
                unsafe { libc::close(fd); }
            }
        }
    }
}
