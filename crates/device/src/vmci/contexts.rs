//! The VMs that have a VMCI device, and what is put into their inboxes in a peer's name.

use std::collections::HashMap;
use std::sync::Arc;

use vmlane_mem::Pages;
use vmlane_port::Budget;
use vmlane_vsock::{Key, Role, SocketAddress, Vm, VmTable};
use vmlane_wire::vmci::{CID_HOST, DatagramHeader, Handle};
use vmlane_wire::vmci_stream::{CONTROL_PACKET, CONTROL_RESOURCE, ControlPacket, PacketType};
use zerocopy::IntoBytes;

use super::account::Account;
use super::connection::Connection;
use super::inbox::Inbox;
use super::spec::Limits;
use super::stats::{Refusal, VmciStats};

/// One VM's device as the hypervisor knows it; what is configured of the VM is in the table of VMs.
pub struct Context {
    pub limits: Limits,
    pub stats: Arc<VmciStats>,
    pub budget: Arc<Budget>,
    pub inbox: Arc<Inbox>,
    /// The driver has enabled interrupts: it can be reached.
    pub ready: bool,
    /// Its datagrams go through byte ports: a handshake takes long.
    pub slow: bool,
    /// Bytes of RAM that its VMM has mapped.
    pub memory: u64,
    pub bitmap: Option<Pages>,
    /// Upper halves of the driver's buffers: for sending, for receiving. They outlive every reset.
    pub buffers_high: [u32; 2],
    /// Address of the bitmap's page, and its shift.
    pub bitmap_at: Option<(u64, u32)>,
    /// Doorbell resource to index in the bitmap.
    pub doorbells: HashMap<u32, usize>,
    pub pairs: usize,
    pub pair_bytes: u64,
    pub connections: usize,
}

impl Context {
    pub fn new(limits: Limits, inbox: Arc<Inbox>, stats: Arc<VmciStats>) -> Context {
        Context {
            budget: Arc::new(Budget::new(limits.overflow_bytes)),
            limits,
            stats,
            inbox,
            ready: false,
            slow: false,
            memory: 0,
            bitmap: None,
            bitmap_at: None,
            buffers_high: [0; 2],
            doorbells: HashMap::new(),
            pairs: 0,
            pair_bytes: 0,
            connections: 0,
        }
    }

    /// It opens a connection.
    pub fn count_connect(&mut self) {
        self.connections += 1;
        self.stats.connects.inc();
    }

    /// Bytes that its queue pairs may have together.
    pub fn queue_pair_bytes(&self) -> u64 {
        self.limits.queue_pair_bytes(self.memory)
    }

    /// Its queue, if a driver is there to fetch from it.
    pub fn reachable_inbox(&self) -> Option<&Arc<Inbox>> {
        self.ready.then_some(&self.inbox)
    }
}

/// All of them, by CID.
pub struct Contexts {
    all: HashMap<u32, Context>,
    /// Of every kind.
    vms: Arc<VmTable>,
}

impl Contexts {
    pub fn new(vms: Arc<VmTable>) -> Contexts {
        Contexts { all: HashMap::new(), vms }
    }

    pub fn get(&self, cid: u32) -> Option<&Context> {
        self.all.get(&cid)
    }

    pub fn get_mut(&mut self, cid: u32) -> Option<&mut Context> {
        self.all.get_mut(&cid)
    }

    pub fn insert(&mut self, cid: u32, context: Context) {
        self.all.insert(cid, context);
    }

    pub fn remove(&mut self, cid: u32) -> Option<Context> {
        self.all.remove(&cid)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Context)> {
        self.all.iter().map(|(&cid, context)| (cid, context))
    }

    /// Is there a VMCI device for `cid`?
    pub fn is_guest(&self, cid: u32) -> bool {
        self.all.contains_key(&cid)
    }

    /// The one of a caller.
    pub fn known(&self, cid: u32) -> Result<&Context, Refusal> {
        self.get(cid).ok_or(Refusal::Destination)
    }

    pub fn known_mut(&mut self, cid: u32) -> Result<&mut Context, Refusal> {
        self.get_mut(cid).ok_or(Refusal::Destination)
    }

    /// What is configured of a VM.
    pub fn vm(&self, cid: u32) -> Result<Arc<Vm>, Refusal> {
        self.vms.get(cid).ok_or(Refusal::Destination)
    }

    /// May these two exchange anything at all?
    pub fn may_talk(&self, a: u32, b: u32) -> bool {
        self.vms.may_talk(a, b)
    }

    /// The queue of `to` if `from` may reach it and a driver is there.
    pub fn reach(&self, from: u32, to: u32) -> Result<&Arc<Inbox>, Refusal> {
        if !self.may_talk(from, to) {
            return Err(Refusal::Destination);
        }
        self.known(to)?.reachable_inbox().ok_or(Refusal::Destination)
    }

    /// Sends RST to `to` in the name of `from`. Dropped when the queue is full: the guest's own
    /// timeouts then do the work, and a flood of bad packets cannot grow anything.
    pub fn send_reset(&self, from: SocketAddress, to: SocketAddress) {
        if self.answer(from, to, PacketType::Rst)
            && let Some(context) = self.get(to.0)
        {
            context.stats.resets_sent.inc();
        }
    }

    /// The same of a packet that carries nothing more than its type. False: there is no one.
    pub fn answer(&self, from: SocketAddress, to: SocketAddress, kind: PacketType) -> bool {
        let Some(inbox) = self.get(to.0).and_then(Context::reachable_inbox) else { return false };
        let packet = ControlPacket::new(kind, 0, 0);
        inbox.push(Account::Control, CID_HOST, control_datagram(from, to, packet));
        true
    }

    /// Passes `packet` on to the other end of the connection, addresses translated.
    pub fn forward(
        &self,
        key: Key,
        connection: &Connection,
        from: Role,
        packet: ControlPacket,
    ) -> Result<(), Refusal> {
        let (source, target) = match from {
            Role::Client => (key.client, key.server),
            Role::Server => (connection.server_as_known(key), key.client),
        };
        let sender = if from == Role::Client { key.client.0 } else { key.server.0 };
        let inbox = self.reach(sender, target.0)?;
        let packet = control_datagram(source, target, packet);
        if inbox.push(Account::Control, sender, packet) { Ok(()) } else { Err(Refusal::Full) }
    }
}

/// A control packet with its addresses, as a datagram.
fn control_datagram(from: SocketAddress, to: SocketAddress, packet: ControlPacket) -> Box<[u8]> {
    let header = DatagramHeader::new(
        Handle::new(to.0, CONTROL_RESOURCE),
        Handle::new(from.0, CONTROL_RESOURCE),
        CONTROL_PACKET,
    );
    let packet = packet.with_ports(from.1, to.1);
    [header.as_bytes(), packet.as_bytes()].concat().into()
}
