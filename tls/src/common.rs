//! What a session's halves and the whole have in common with connections.
//!
//! State: none. Thread class: any thread.

/// What a session's halves and the whole have in common with connections.
macro_rules! tls_facts {
    ($type:ty, $half:ident, $half_mut:ident) => {
        impl $type {
            /// What the handshake agreed on.
            pub fn facts(&self) -> &TlsFacts {
                &self.session().facts
            }

            /// Ends the connection now, without a close_notify: the peer sees a reset; what waits on it resumes with
            /// [`CloseReason::Local`].
            pub fn reset(&mut self) {
                self.$half_mut().reset();
            }

            /// A handle that closes (close_notify, then FIN, behind what is queued) or resets this connection from any
            /// thread.
            pub fn close_handle(&self) -> CloseHandle {
                self.$half().close_handle()
            }

            /// Why both directions of the connection ended, once they have.
            pub fn close_reason(&self) -> Option<CloseReason> {
                self.$half().close_reason()
            }

            /// The peer's address.
            ///
            /// # Errors
            /// That of getpeername(2).
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.$half().peer_addr()
            }

            /// This side's address.
            ///
            /// # Errors
            /// That of getsockname(2).
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.$half().local_addr()
            }

            /// The listener that accepted this connection.
            pub fn listener(&self) -> epoxide::ListenerId {
                self.$half().listener()
            }

            /// Names the connection; see [`Connection::id`](epoxide::Connection::id).
            pub fn id(&self) -> u64 {
                self.$half().id()
            }

            /// The reactor that this connection belongs to.
            pub fn reactor(&self) -> ReactorHandle {
                self.$half().reactor()
            }

            /// See [`Connection::set_deadline`](epoxide::Connection::set_deadline).
            pub fn set_deadline(&self, at: Option<Instant>, what: &'static str) {
                self.$half().set_deadline(at, what);
            }

            /// Holds the read clock while the guard lives.
            pub fn suspend_read_timeout(&self) -> ReadTimeoutSuspended {
                self.$half().suspend_read_timeout()
            }

            /// See [`Connection::set_min_send_rate`](epoxide::Connection::set_min_send_rate).
            pub fn set_min_send_rate(&self, bytes_per_second: u64) {
                self.$half().set_min_send_rate(bytes_per_second);
            }

            /// Waits until the reactor drains.
            pub fn draining(&self) -> Draining {
                self.$half().draining()
            }

            /// Has the reactor begun to drain?
            pub fn is_draining(&self) -> bool {
                self.$half().is_draining()
            }
        }
    };
}
pub(crate) use tls_facts;
