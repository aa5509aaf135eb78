//! Uplinks of the kind `vhost_user`: a thread of their own connects, by itself or through the helper once the daemon is confined.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmlane_host::uplink::vhost_user::{VhostUser, connect};
use vmlane_port::PortId;
use vmlane_switch::Switch;

use super::error::UplinkError;
use super::helper::SharedHelper;
use super::kind::{OpenError, Opened};
use crate::config::{UplinkConfig, UplinkKind};
use crate::confine;

/// An uplink that connects whenever it can. It ends when this is dropped.
pub struct Connecting {
    /// Its number in the configuration, by which the helper knows it.
    index: Arc<AtomicUsize>,
    _session: VhostUser,
}

impl Connecting {
    /// Serves a port of the switch from now on, for the uplink with that number in the configuration.
    pub fn start(
        switch: &Arc<Switch>,
        (port, index): (PortId, usize),
        uplink: &UplinkConfig,
        helper: &SharedHelper,
    ) -> Result<Connecting, UplinkError> {
        let failed = |cause| UplinkError::Open { name: uplink.name.clone(), cause };
        let UplinkKind::VhostUser { socket, mtu } = &uplink.kind else { return Err(failed(OpenError::Kind)) };
        let index = Arc::new(AtomicUsize::new(index));
        let (config, helper, number) = (uplink.clone(), helper.clone(), index.clone());
        let reach = Box::new(move || reach(&config, &helper, number.load(Ordering::Relaxed)));
        let session = VhostUser::start((&uplink.name, *mtu), reach, switch.clone(), port)
            .map_err(|cause| failed(OpenError::VhostUser { socket: socket.clone(), cause }))?;
        Ok(Connecting { index, _session: session })
    }

    /// The configuration has changed around it.
    pub fn set_index(&self, index: usize) {
        self.index.store(index, Ordering::Relaxed);
    }
}

/// A connected socket; or why there is none, for the log.
fn reach(uplink: &UplinkConfig, helper: &SharedHelper, index: usize) -> Result<OwnedFd, String> {
    if confine::is_confined() {
        return match helper.ask(uplink, |helper| helper.open(index, uplink, false)) {
            Ok(Opened::VhostUser(socket)) => Ok(socket),
            Ok(_) => Err(OpenError::Kind.to_string()),
            Err(error) => Err(error.to_string()),
        };
    }
    let socket = uplink.kind.target();
    connect(Path::new(socket)).map_err(|cause| format!("vhost_user = {socket:?}: {cause}"))
}
