//! A stream socket as a program uses it: send, receive, shut down, close. Source: `af_vsock.c`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vmlane_wire::vmci_stream::{ControlPacket, PacketType, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

use super::guest::Guest;
use super::queues::Queues;
use super::socket::{Socket, SocketError, State};

/// A connected stream socket. Dropping it closes it; threads of the guest may share it.
pub struct Stream {
    guest: Arc<Guest>,
    pub(super) socket: Arc<Socket>,
}

impl Stream {
    pub(super) fn new(guest: Arc<Guest>, socket: Arc<Socket>) -> Stream {
        Stream { guest, socket }
    }

    /// The peer's (CID, port) as this guest knows it.
    pub fn peer(&self) -> (u32, u32) {
        self.socket.key.0
    }

    /// This end's port.
    pub fn port(&self) -> u32 {
        self.socket.key.1
    }

    /// Looks at the queue pair under the socket's lock.
    pub fn queues<T>(&self, read: impl FnOnce(&Queues) -> T) -> T {
        read(&self.socket.state.lock().pair.as_ref().expect("a connected socket has a queue pair").0)
    }

    /// RST packets that came for the established connection.
    pub fn resets(&self) -> u64 {
        self.socket.state.lock().resets
    }

    /// What the peer has shut down so far, as far as packets handled by now report.
    pub fn peer_shutdown(&self) -> u64 {
        self.socket.state.lock().peer_shutdown
    }

    /// Sends some bytes, at least one; waits for room. Returns their number.
    pub fn send(&self, data: &[u8]) -> Result<usize, SocketError> {
        loop {
            let wakes = self.socket.writer_wakes.load(Ordering::SeqCst);
            let mut guard = self.socket.state.lock();
            let State { pair, peer_shutdown, shutdown, .. } = &mut *guard;
            let (queues, notify) = pair.as_mut().ok_or(SocketError::Closed)?;
            if *peer_shutdown & SHUTDOWN_RECEIVE != 0 || *shutdown & SHUTDOWN_SEND != 0 {
                return Err(SocketError::Closed);
            }
            let sent = queues.enqueue(data);
            if sent > 0 {
                let packet = notify.after_enqueue(queues, sent);
                self.guest.transport.notify(&self.socket, packet);
                return Ok(sent);
            }
            let packet = notify.writer_blocks(queues);
            self.guest.transport.notify(&self.socket, packet);
            drop(guard);
            let woken = || self.socket.writer_wakes.load(Ordering::SeqCst) != wakes;
            self.guest.wait_until("room to send (a READ)", woken)?;
        }
    }

    /// Sends all of it.
    pub fn send_all(&self, mut data: &[u8]) -> Result<(), SocketError> {
        while !data.is_empty() {
            let sent = self.send(data)?;
            data = &data[sent..];
        }
        Ok(())
    }

    /// Receives some bytes; 0 at the end of the stream.
    pub fn recv(&self, out: &mut [u8]) -> Result<usize, SocketError> {
        self.recv_at_least(out, 1)
    }

    /// Receives until the buffer is full. Returns less at the end of the stream.
    pub fn recv_all(&self, out: &mut [u8]) -> Result<usize, SocketError> {
        let mut got = 0;
        while got < out.len() {
            match self.recv(&mut out[got..])? {
                0 => break,
                len => got += len,
            }
        }
        Ok(got)
    }

    fn recv_at_least(&self, out: &mut [u8], target: u64) -> Result<usize, SocketError> {
        if let Some((_, notify)) = &mut self.socket.state.lock().pair {
            notify.receive_begins(target);
        }
        loop {
            let wakes = self.socket.reader_wakes.load(Ordering::SeqCst);
            let mut guard = self.socket.state.lock();
            let State { pair, peer_shutdown, shutdown, .. } = &mut *guard;
            let (queues, notify) = pair.as_mut().ok_or(SocketError::Closed)?;
            let len = queues.dequeue(out);
            if len > 0 {
                let packet = notify.after_dequeue(queues, len);
                self.guest.transport.notify(&self.socket, packet);
                return Ok(len);
            }
            if *peer_shutdown & SHUTDOWN_SEND != 0 || *shutdown & SHUTDOWN_RECEIVE != 0 {
                return Ok(0);
            }
            let packet = notify.reader_blocks(queues, target);
            self.guest.transport.notify(&self.socket, packet);
            drop(guard);
            self.sleep_for_bytes(wakes)?;
        }
    }

    /// Polls with SO_RCVLOWAT: waits until `target` bytes are there, or will never be. Linux wakes such
    /// a reader only when a WROTE arrives at a moment at which so many are there.
    pub fn wait_readable(&self, target: u64) -> Result<u64, SocketError> {
        self.socket.low_water.store(target, Ordering::SeqCst);
        let ready = loop {
            let wakes = self.socket.reader_wakes.load(Ordering::SeqCst);
            let mut guard = self.socket.state.lock();
            let State { pair, peer_shutdown, .. } = &mut *guard;
            let (queues, notify) = pair.as_mut().ok_or(SocketError::Closed)?;
            let ready = queues.ready();
            if ready >= target || *peer_shutdown & SHUTDOWN_SEND != 0 {
                break ready;
            }
            let packet = notify.poll_unsatisfied(queues, target);
            self.guest.transport.notify(&self.socket, packet);
            drop(guard);
            self.sleep_for_bytes(wakes)?;
        };
        self.socket.low_water.store(1, Ordering::SeqCst);
        Ok(ready)
    }

    fn sleep_for_bytes(&self, wakes: u64) -> Result<(), SocketError> {
        let woken = || self.socket.reader_wakes.load(Ordering::SeqCst) != wakes;
        self.guest.wait_until("bytes to receive (a WROTE)", woken)
    }

    /// Announces that this end sends (2) or receives (1) no more.
    pub fn shutdown(&self, mode: u64) {
        self.socket.state.lock().shutdown |= mode;
        self.guest
            .transport
            .send_control(self.socket.key, ControlPacket::new(PacketType::Shutdown, 0, 0).with_mode(mode));
    }

    /// Closes: nothing is sent, the queue pair is detached and its pages are freed.
    pub fn close(self) {
        drop(self);
    }

    fn take_queues(&self) -> Option<Queues> {
        self.socket.state.lock().pair.take().map(|(queues, _)| queues)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(queues) = self.take_queues() {
            self.guest.transport.driver.lock().detach(queues);
        }
        self.guest.transport.table.lock().sockets.remove(&self.socket.key);
    }
}
