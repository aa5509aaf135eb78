//! The VMM's side of vfio-user, small and synchronous: for tests and benches that attach synthetic
//! guests, in this process or another. Not for production use: it trusts the server.

mod socket;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use vmlane_wire::vfio_user::{
    Command, DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, Kind, RegionAccess, RegionInfo, SetIrqs,
    irq_index, split,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

pub use socket::{Answer, ClientError};

/// A VMM that has connected one device.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    next_id: u16,
}

impl Client {
    /// Connects and negotiates the version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        let mut client = Client::new(UnixStream::connect(path)?);
        client.version()?;
        Ok(client)
    }

    /// Takes a connected socket; an answer that takes a minute is an error, not a hang.
    pub fn new(stream: UnixStream) -> Client {
        // Fails only for a zero duration.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
        Client { stream, next_id: 1 }
    }

    /// The socket, for sending what this client would not.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// A request as bytes, with a fresh message id.
    pub fn message(&mut self, command: u16, payload: &[u8], no_reply: bool) -> Vec<u8> {
        let header = Header::request(self.next_id, command, payload.len(), no_reply);
        self.next_id = self.next_id.wrapping_add(1);
        [header.as_bytes(), payload].concat()
    }

    /// Sends bytes in one piece, descriptors with their first byte.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        socket::send(&self.stream, bytes, fds)
    }

    /// Receives one message, whatever it is.
    pub fn receive(&self) -> Result<(Header, Answer), ClientError> {
        socket::receive(&self.stream)
    }

    /// Sends a request and waits for its answer, which must be the next message.
    pub fn request(
        &mut self,
        command: u16,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, ClientError> {
        let id = self.next_id;
        let bytes = self.message(command, payload, false);
        self.send(&bytes, fds)?;
        let (header, answer) = self.receive()?;
        if (header.id.get(), header.command.get(), header.kind()) != (id, command, Kind::Reply) {
            return Err(ClientError::Answer { command, what: "not the one to this request" });
        }
        if header.failed() {
            return Err(ClientError::Refused { command, errno: header.error.get() });
        }
        Ok(answer)
    }

    fn call(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, ClientError> {
        self.request(command.code(), payload, fds)
    }

    /// Negotiates; returns the server's capabilities.
    pub fn version(&mut self) -> Result<String, ClientError> {
        let payload = [&[0; 4][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        let answer = self.call(Command::Version, &payload, &[])?.payload;
        let text = answer.get(4..answer.len().saturating_sub(1)).unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    pub fn device_info(&mut self) -> Result<DeviceInfo, ClientError> {
        let answer = self.call(Command::DeviceInfo, &[0; size_of::<DeviceInfo>()], &[])?;
        layout(Command::DeviceInfo, &answer.payload)
    }

    /// What a region is, and its file if it can be mapped.
    pub fn region_info(&mut self, index: u32) -> Result<(RegionInfo, Option<OwnedFd>), ClientError> {
        let mut payload = [0; size_of::<RegionInfo>()];
        payload[8..12].copy_from_slice(&index.to_le_bytes());
        let answer = self.call(Command::RegionInfo, &payload, &[])?;
        Ok((layout(Command::RegionInfo, &answer.payload)?, answer.fd))
    }

    pub fn irq_info(&mut self, index: u32) -> Result<IrqInfo, ClientError> {
        let mut payload = [0; size_of::<IrqInfo>()];
        payload[8..12].copy_from_slice(&index.to_le_bytes());
        layout(Command::IrqInfo, &self.call(Command::IrqInfo, &payload, &[])?.payload)
    }

    /// Announces guest memory; without a file it is announced but cannot be used.
    pub fn map(
        &mut self,
        guest: u64,
        len: u64,
        file: Option<(BorrowedFd<'_>, u64)>,
        writable: bool,
    ) -> Result<(), ClientError> {
        let map = DmaMap {
            argsz: U32::new(size_of::<DmaMap>() as u32),
            flags: U32::new(DmaMap::READ | if writable { DmaMap::WRITE } else { 0 }),
            offset: U64::new(file.map_or(0, |(_, offset)| offset)),
            address: U64::new(guest),
            size: U64::new(len),
        };
        let fds: Vec<_> = file.iter().map(|(fd, _)| *fd).collect();
        self.call(Command::DmaMap, map.as_bytes(), &fds).map(drop)
    }

    pub fn unmap(&mut self, guest: u64, len: u64) -> Result<(), ClientError> {
        self.unmap_with(guest, len, 0)
    }

    pub fn unmap_all(&mut self) -> Result<(), ClientError> {
        self.unmap_with(0, 0, DmaUnmap::ALL)
    }

    fn unmap_with(&mut self, guest: u64, len: u64, flags: u32) -> Result<(), ClientError> {
        let unmap = DmaUnmap {
            argsz: U32::new(size_of::<DmaUnmap>() as u32),
            flags: U32::new(flags),
            address: U64::new(guest),
            size: U64::new(len),
        };
        self.call(Command::DmaUnmap, unmap.as_bytes(), &[]).map(drop)
    }

    /// Any `SET_IRQS`; `data` are its boolean bytes.
    pub fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        vectors: std::ops::Range<u32>,
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let set = SetIrqs {
            argsz: U32::new((size_of::<SetIrqs>() + data.len()) as u32),
            flags: U32::new(flags),
            index: U32::new(index),
            start: U32::new(vectors.start),
            count: U32::new(vectors.end - vectors.start),
        };
        self.call(Command::SetIrqs, &[set.as_bytes(), data].concat(), fds).map(drop)
    }

    /// Switches MSI-X on as QEMU does: once without descriptors, then vector by vector.
    pub fn enable_msix(&mut self, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let flags = SetIrqs::DATA_EVENTFD | SetIrqs::TRIGGER;
        self.set_irqs(flags, irq_index::MSIX, 0..1, &[], &[])?;
        for (vector, fd) in (0u32..).zip(fds) {
            self.set_irqs(flags, irq_index::MSIX, vector..vector + 1, &[], &[*fd])?;
        }
        Ok(())
    }

    pub fn disable_irqs(&mut self, index: u32) -> Result<(), ClientError> {
        self.set_irqs(SetIrqs::DATA_NONE | SetIrqs::TRIGGER, index, 0..0, &[], &[])
    }

    pub fn reset(&mut self) -> Result<(), ClientError> {
        self.call(Command::DeviceReset, &[], &[]).map(drop)
    }

    pub fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let access = access(region, offset, data.len());
        let answer = self.call(Command::RegionRead, access.as_bytes(), &[])?;
        let got = answer.payload.get(size_of::<RegionAccess>()..).filter(|got| got.len() == data.len());
        data.copy_from_slice(got.ok_or(ClientError::Answer { command: 9, what: "wrong number of bytes" })?);
        Ok(())
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let access = access(region, offset, data.len());
        self.call(Command::RegionWrite, &[access.as_bytes(), data].concat(), &[]).map(drop)
    }

    /// A posted write: there will be no answer, so its outcome is unknown.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        let access = access(region, offset, data.len());
        let bytes = self.message(Command::RegionWrite.code(), &[access.as_bytes(), data].concat(), true);
        self.send(&bytes, &[])
    }

    pub fn read_u8(&mut self, region: u32, offset: u64) -> Result<u8, ClientError> {
        let mut data = [0; 1];
        self.read(region, offset, &mut data).map(|()| data[0])
    }

    pub fn read_u16(&mut self, region: u32, offset: u64) -> Result<u16, ClientError> {
        let mut data = U16::ZERO;
        self.read(region, offset, data.as_mut_bytes()).map(|()| data.get())
    }

    pub fn read_u32(&mut self, region: u32, offset: u64) -> Result<u32, ClientError> {
        let mut data = U32::ZERO;
        self.read(region, offset, data.as_mut_bytes()).map(|()| data.get())
    }

    pub fn write_u32(&mut self, region: u32, offset: u64, value: u32) -> Result<(), ClientError> {
        self.write(region, offset, &value.to_le_bytes())
    }
}

/// The fixed part of a register access.
pub fn access(region: u32, offset: u64, len: usize) -> RegionAccess {
    RegionAccess { offset: U64::new(offset), region: U32::new(region), count: U32::new(len as u32) }
}

fn layout<
    T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned + Copy,
>(
    command: Command,
    payload: &[u8],
) -> Result<T, ClientError> {
    let short = ClientError::Answer { command: command.code(), what: "too short" };
    split::<T>(payload).map(|(layout, _)| *layout).ok_or(short)
}
