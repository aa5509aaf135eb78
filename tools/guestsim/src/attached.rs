//! Guests whose VMM is this process, attached to devices of another process: registers travel by vfio-user
//! and interrupts by eventfd.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use vmlane_device::irq::Interrupts as _;
use vmlane_device::pci::CONFIG_REGION;
use vmlane_wire::pci::{command, offset};
use vmlane_wire::vmxnet3::regs::PageReg;

use crate::events::{eventfd, signals};
use crate::nic::NicRegisters;
use crate::vfio_user::{Client, ClientError};
use crate::{Driver, Lines, Path, ProbeError, Ram, Registers};

/// Why a guest is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("event fds and their thread: {0}")]
    Host(#[from] std::io::Error),
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// Register accesses through a vfio-user client.
struct Remote(Client);

impl Registers for Remote {
    fn read32(&mut self, region: usize, offset: u64) -> u32 {
        self.0.read_u32(region as u32, offset).expect("the server answers")
    }

    fn write32(&mut self, region: usize, offset: u64, value: u32) {
        self.0.write_u32(region as u32, offset, value).expect("the server answers");
    }

    fn post32(&mut self, region: usize, offset: u64, value: u32) {
        self.0.post(region as u32, offset, &value.to_le_bytes()).expect("the server is there");
    }

    fn write_bytes(&mut self, region: usize, offset: u64, bytes: &[u8]) {
        self.0.write(region as u32, offset, bytes).expect("the server answers");
    }

    fn read_bytes(&mut self, region: usize, offset: u64, bytes: &mut [u8]) {
        self.0.read(region as u32, offset, bytes).expect("the server answers");
    }
}

/// A driver of the device behind `socket`, for a guest with so many bytes of RAM. Its thread for interrupts
/// ends with the process.
pub fn attach(socket: &std::path::Path, ram: u64) -> Result<Driver, AttachError> {
    let (client, ram, vectors) = connect(socket, ram)?;
    let lines = Lines::msix();
    let doorbell = lines.clone();
    std::thread::Builder::new().name("irqs".into()).spawn(move || deliver(&vectors, &doorbell))?;
    Ok(Driver::probe(Box::new(Remote(client)), ram, lines, Path::Dma)?)
}

/// A session with the guest's memory mapped and three vectors connected.
fn connect(socket: &std::path::Path, ram: u64) -> Result<(Client, Arc<Ram>, Vec<OwnedFd>), AttachError> {
    let ram = Arc::new(Ram::new(ram));
    let mut client = Client::connect(socket)?;
    for (guest, len, offset) in ram.regions() {
        client.map(guest, len, Some((ram.fd().as_fd(), offset)), true)?;
    }
    let vectors: Vec<OwnedFd> = (0..3).map(|_| eventfd()).collect::<Result<_, _>>()?;
    client.enable_msix(&vectors.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
    Ok((client, ram, vectors))
}

/// The registers of a VMXNET3 card behind a socket. Its interrupts are not delivered: the driver polls by
/// itself.
pub struct AttachedNic {
    client: Mutex<Client>,
    ram: Arc<Ram>,
    _vectors: Vec<OwnedFd>,
}

impl AttachedNic {
    /// For a guest with so many bytes of RAM; bus mastering is on.
    pub fn attach(socket: &std::path::Path, ram: u64) -> Result<AttachedNic, AttachError> {
        let (mut client, ram, vectors) = connect(socket, ram)?;
        let bits = command::BUS_MASTER | command::MEMORY;
        client.write(CONFIG_REGION as u32, offset::COMMAND as u64, &bits.to_le_bytes())?;
        Ok(AttachedNic { client: Mutex::new(client), ram, _vectors: vectors })
    }
}

impl AttachedNic {
    /// A trapped write to BAR 0, whose answer its vCPU would wait for. This returns at once.
    pub fn post_page(&self, reg: PageReg, value: u32) {
        let mut client = self.client.lock();
        client.post(0, reg.offset(), &value.to_le_bytes()).expect("the server is there");
    }
}

impl NicRegisters for AttachedNic {
    fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    fn read32(&self, region: usize, offset: u64) -> u32 {
        self.client.lock().read_u32(region as u32, offset).expect("the server answers")
    }

    fn write32(&self, region: usize, offset: u64, value: u32) {
        self.client.lock().write_u32(region as u32, offset, value).expect("the server answers");
    }
}

/// What a hypervisor does with an eventfd: an edge at the guest.
fn deliver(vectors: &[OwnedFd], lines: &Lines) {
    loop {
        let mut polled: Vec<_> = vectors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if poll(&mut polled, None).is_err() {
            continue;
        }
        for (vector, fd) in (0..).zip(vectors) {
            if signals(fd) > 0 {
                lines.raise(vector);
            }
        }
    }
}
