//! Uplinks of the kind `vhost_user`: a thread of their own connects, by itself or through the helper once the
//! daemon is confined; or it waits for the other switch to connect.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmlane_config::{UplinkConfig, UplinkKind};
use vmlane_host::uplink::vhost_user::{Entrance, Peers, SocketName, VhostUser, connect};
use vmlane_port::PortId;
use vmlane_switch::Switch;

use super::error::UplinkError;
use super::helper::SharedHelper;
use super::kind::{Listening, OpenError, Opened};

/// An uplink that has a connection whenever it can. It ends when this is dropped, and its socket's name with
/// it.
pub struct Connecting {
    /// Its number in the configuration, by which the helper knows it.
    index: Arc<AtomicUsize>,
    session: Option<VhostUser>,
    socket: Option<Socket>,
}

/// The name of a socket where the other switch connects.
struct Socket {
    name: SocketName,
    /// Of a socket that the helper has made.
    of_helper: Option<(usize, UplinkConfig, SharedHelper)>,
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
        let UplinkKind::VhostUser { socket, mtu, .. } = &uplink.kind else {
            return Err(failed(OpenError::Kind));
        };
        let index = Arc::new(AtomicUsize::new(index));
        let (config, helper, number) = (uplink.clone(), helper.clone(), index.clone());
        let reach = Box::new(move || reach(&config, &helper, number.load(Ordering::Relaxed)));
        let session = VhostUser::start((&uplink.name, *mtu), Peers::Connect(reach), switch.clone(), port)
            .map_err(|cause| failed(OpenError::VhostUser { socket: socket.clone(), cause }))?;
        Ok(Connecting { index, session: Some(session), socket: None })
    }

    /// Serves a port of the switch from now on, for an uplink whose socket listens.
    pub fn listen(
        switch: &Arc<Switch>,
        port: PortId,
        uplink: &UplinkConfig,
        helper: &SharedHelper,
        listening: Listening,
    ) -> Result<Connecting, UplinkError> {
        let failed = |cause| UplinkError::Open { name: uplink.name.clone(), cause };
        let UplinkKind::VhostUser { socket: path, mtu, .. } = &uplink.kind else {
            return Err(failed(OpenError::Kind));
        };
        let Listening { socket, name, of_helper } = listening;
        let of_helper = of_helper.map(|number| (number, uplink.clone(), helper.clone()));
        // From here on, an error removes the name.
        let mut connecting =
            Connecting { index: Arc::default(), session: None, socket: Some(Socket { name, of_helper }) };
        let session = Entrance::new(socket, uplink.kind.owner()).and_then(|entrance| {
            VhostUser::start((&uplink.name, *mtu), Peers::Accept(entrance), switch.clone(), port)
        });
        let failed_at = |cause| failed(OpenError::VhostUser { socket: path.clone(), cause });
        connecting.session = Some(session.map_err(failed_at)?);
        Ok(connecting)
    }

    /// Does the other switch connect?
    pub fn listens(&self) -> bool {
        self.socket.is_some()
    }

    /// The other switch cannot connect any more.
    pub fn is_gone(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| !socket.name.is_there())
    }

    /// The configuration has changed around it.
    pub fn set_index(&self, index: usize) {
        self.index.store(index, Ordering::Relaxed);
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        // First, so that no peer finds the name without a process that listens.
        self.session = None;
        match &self.socket {
            Some(Socket { of_helper: Some((number, uplink, helper)), .. }) => {
                // A helper that is gone has removed it.
                let _ = helper.ask(uplink, |helper| helper.remove(*number, uplink));
            }
            Some(Socket { name, of_helper: None }) => name.remove(),
            None => {}
        }
    }
}

/// A connected socket; or why there is none, for the log.
fn reach(uplink: &UplinkConfig, helper: &SharedHelper, index: usize) -> Result<OwnedFd, String> {
    if vmlane_confine::is_confined() {
        return match helper.ask(uplink, |helper| helper.open(index, uplink, false)) {
            Ok(Opened::VhostUser(socket)) => Ok(socket),
            Ok(_) => Err(OpenError::Kind.to_string()),
            Err(error) => Err(error.to_string()),
        };
    }
    let socket = uplink.kind.target();
    connect(Path::new(socket)).map_err(|cause| format!("vhost_user = {socket:?}: {cause}"))
}
