//! What BoringSSL reads from and writes to: received ciphertext, and the connection's outgoing queue.
//!
//! Once the kernel makes the records (`kernel`), plaintext and records that are no data go into the queue, and what BoringSSL
//! writes goes nowhere: its keys are stale.
//!
//! State: the ciphertext received last. Who touches it: whoever holds the session lock. Laws: 14 (a record is appended to
//! the queue by the very call that encrypted it), 16 (ciphertext that waits is one pooled block at most).

use bytes::Bytes;
use epoxide::RecvBuf;
use epoxide::layer::{KernelTx, NewKeys, Queue};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Wire {
    input: Option<RecvBuf>,
    queue: Queue,
    /// Something was appended: the queue is to be kicked once the lock is released.
    wrote: bool,
    /// The connection takes nothing more: what was written since is gone.
    refused: bool,
    /// The kernel makes the records.
    kernel: Option<Arc<KernelTx>>,
}

impl Wire {
    pub(crate) fn new(queue: Queue) -> Self {
        Self { input: None, queue, wrote: false, refused: false, kernel: None }
    }

    /// From now on the kernel makes the records.
    pub(crate) fn leave_to_kernel(&mut self, tx: Arc<KernelTx>) {
        self.kernel = Some(tx);
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Records with so many bytes in all are about to be written: the queue grows for them once, not by doubling.
    pub(crate) fn expect(&self, bytes: usize) {
        self.queue.reserve(bytes);
    }

    /// Data, for the kernel to make records of.
    pub(crate) fn plain(&mut self, data: &[u8]) {
        let taken = self.queue.append(data);
        self.note(taken);
    }

    /// An alert, the session's last record, for the kernel to make.
    pub(crate) fn alert(&mut self, alert: [u8; 2]) {
        if let Some(tx) = &self.kernel {
            let taken = self.queue.append_alert(tx, Bytes::copy_from_slice(&alert));
            self.note(taken);
        }
    }

    /// A message of the handshake, behind which the kernel makes its records with these keys.
    pub(crate) fn new_keys(&mut self, message: &[u8], keys: Arc<dyn NewKeys>) {
        if let Some(tx) = &self.kernel {
            let taken = self.queue.append_new_keys(tx, Bytes::copy_from_slice(message), keys);
            self.note(taken);
        }
    }

    /// Something was appended, or refused.
    pub(crate) fn note(&mut self, taken: bool) {
        if taken {
            self.wrote = true;
        } else {
            self.refused = true;
        }
    }

    /// Received bytes, to be read next. What was there before was read to its end.
    pub(crate) fn feed(&mut self, input: RecvBuf) {
        debug_assert!(self.input.is_none(), "ciphertext would be lost");
        self.input = Some(input);
    }

    /// Is received ciphertext left?
    pub(crate) fn has_input(&self) -> bool {
        self.input.is_some()
    }

    /// Was anything appended since the last look?
    pub(crate) fn take_wrote(&mut self) -> bool {
        std::mem::take(&mut self.wrote)
    }

    /// Did the connection refuse what was written?
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }
}

impl Read for Wire {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let Some(input) = &mut self.input else { return Err(io::ErrorKind::WouldBlock.into()) };
        let n = space.len().min(input.len());
        space[..n].copy_from_slice(&input[..n]);
        bytes::Buf::advance(input, n);
        if input.is_empty() {
            // Back to its pool: an idle session holds no block.
            self.input = None;
        }
        Ok(n)
    }
}

impl Write for Wire {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        // Taken either way: an error here would be BoringSSL's for ever, and hide why the connection ended.
        if self.kernel.is_none() {
            self.plain(record);
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
