//! Rings for new streams, and what they may leave behind.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use vmlane_port::shared_ring::SharedMap;
use vmlane_port::{Budget, StreamAddress, StreamEnd};
use vmlane_wire::host::{RING, layout};

use crate::sockets::client::{Account, RingUse};
use crate::sockets::inbox::{Inbox, StreamWaker, Token};
use crate::sockets::left::{LeftEnd, LeftStream};
use crate::sockets::stream::Pump;

/// Bytes that the programs of one user may leave behind in streams that they closed.
const OVERFLOW: usize = 64 << 20;
/// The same of a VM with a hybrid socket: what a guest may whose device is ours.
const VM_OVERFLOW: usize = 16 << 20;

/// A stream's end, what reaches its process, and its ring.
pub type Half = (StreamEnd, Arc<StreamWaker>, RingUse);

/// See the module's text.
pub struct Rings {
    /// Where streams' workers wake the thread.
    inbox: Arc<Inbox>,
    budgets: HashMap<Account, Arc<Budget>>,
}

impl Rings {
    pub fn new(inbox: Arc<Inbox>) -> Rings {
        Rings { inbox, budgets: HashMap::new() }
    }

    /// A ring for a new stream: the stream's end, and the rest.
    pub fn ring(
        &mut self,
        token: Token,
        account: Account,
        signal: Option<Arc<OwnedFd>>,
        address: Option<StreamAddress>,
    ) -> io::Result<Half> {
        let fd = vmlane_mem::memfd("vmlane-host", layout::file(RING))?;
        let map = SharedMap::new(fd.try_clone()?, RING).map_err(io::Error::other)?;
        let budget = self.budget(account);
        let theirs = signal.is_some();
        let waker = Arc::new(StreamWaker::new(token, self.inbox.clone(), signal));
        let mut port = Box::new(map.port(waker.clone()).map_err(io::Error::other)?);
        address.into_iter().for_each(|address| port.memory.set_address(address));
        let ring = if theirs {
            RingUse::Theirs(map, fd)
        } else {
            let (out, incoming) = vmlane_sock::ring::map(fd, RING)?;
            let pump = Pump::new(out, incoming);
            RingUse::Ours(Box::new(if account.is_user() { pump } else { pump.of_vmm() }))
        };
        Ok((StreamEnd { port, budget, slow: false, worker: None }, waker, ring))
    }

    /// What bytes are taken from that an account's streams leave behind.
    pub fn budget(&mut self, account: Account) -> Arc<Budget> {
        let overflow = if matches!(account, Account::Vm(_)) { VM_OVERFLOW } else { OVERFLOW };
        self.budgets.entry(account).or_insert_with(|| Arc::new(Budget::new(overflow))).clone()
    }

    /// The program's end of such a stream.
    pub fn programs_half(
        &mut self,
        left: &mut LeftStream,
        token: Token,
        account: Account,
        socket: &Arc<OwnedFd>,
    ) -> io::Result<Half> {
        let waker = Arc::new(StreamWaker::new(token, self.inbox.clone(), Some(socket.clone())));
        let port = Box::new(LeftEnd::of_program(&left.map, waker.clone())?);
        left.program = Some(token);
        let end = StreamEnd { port, budget: self.budget(account), slow: false, worker: None };
        Ok((end, waker, RingUse::Left(left.map.clone())))
    }

    /// The helper's.
    pub fn helpers_half(
        &mut self,
        left: &mut LeftStream,
        token: Token,
        account: Account,
        line: &Arc<OwnedFd>,
    ) -> io::Result<Half> {
        let waker = Arc::new(StreamWaker::new(token, self.inbox.clone(), None));
        let port = Box::new(LeftEnd::of_helper(&left.map, line.clone())?);
        left.helper = Some(token);
        let end = StreamEnd { port, budget: self.budget(account), slow: false, worker: None };
        Ok((end, waker, RingUse::Helpers(left.map.clone())))
    }

    /// The VM is served no more.
    pub fn forget(&mut self, account: Account) {
        self.budgets.remove(&account);
    }
}
