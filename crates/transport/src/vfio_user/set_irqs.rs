//! `DEVICE_SET_IRQS`: connecting, testing and masking interrupts.
//!
//! What QEMU sends: INTx goes on with one descriptor and off with "no data, count 0"; MSI-X goes on
//! with count 1 and *no* descriptor, then each vector follows in a message of its own; at each end of
//! a line interrupt comes an unmask without data. Everything else the VFIO interface allows is
//! either carried out or refused with an errno.

use std::os::fd::OwnedFd;

use vmlane_device::pci::IrqCounts;
use vmlane_state::Scope;
use vmlane_wire::vfio_user::{IrqAction, IrqData, SetIrqs, irq_index};

use super::error::RequestError;
use crate::irq::{IrqKind, IrqSet};
use crate::kept::hold;

/// How many vectors of a kind the device offers, by what it has of each; none of the kinds it does not know.
pub fn vectors(offered: IrqCounts, index: u32) -> u32 {
    match index {
        irq_index::INTX => offered.intx,
        irq_index::MSI => offered.msi,
        irq_index::MSIX => offered.msix,
        _ => 0,
    }
}

/// Carries the request out, up to telling the device. `fds` are held in `scope`.
pub fn set_irqs(
    irqs: &IrqSet,
    scope: &Scope,
    offered: IrqCounts,
    (set, data): (&SetIrqs, &[u8]),
    fds: Vec<OwnedFd>,
) -> Result<(), RequestError> {
    let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
    let flags = set.flags.get();
    let Some((what, action)) = set.operation() else {
        return Err(RequestError::Field { name: "interrupt flags", value: flags.into() });
    };
    let kind = match index {
        irq_index::INTX => IrqKind::Intx,
        irq_index::MSI => IrqKind::Msi,
        irq_index::MSIX => IrqKind::Msix,
        _ => return Err(RequestError::Field { name: "interrupt index", value: index.into() }),
    };
    let end = start.checked_add(count).filter(|end| *end <= vectors(offered, index));
    if end.is_none() {
        return Err(RequestError::Field {
            name: "interrupt range end",
            value: u64::from(start) + u64::from(count),
        });
    }
    let vectors = start as usize..(start + count) as usize;
    match (action, what) {
        (IrqAction::Trigger, IrqData::None) if count == 0 => {
            irqs.disable(kind);
            scope.remove_all(&format!("s/irq.{}.", kind.name()));
        }
        _ if count == 0 => return Err(RequestError::Field { name: "interrupt count", value: 0 }),
        (IrqAction::Trigger, IrqData::None) => vectors.for_each(|vector| irqs.trigger(kind, vector)),
        (IrqAction::Trigger, IrqData::Bool) => {
            let wanted = booleans(data, count)?;
            vectors
                .zip(wanted)
                .filter(|(_, on)| **on != 0)
                .for_each(|(vector, _)| irqs.trigger(kind, vector));
        }
        (IrqAction::Trigger, IrqData::EventFd) if fds.is_empty() => {
            irqs.disconnect(kind, vectors.start, vectors.len());
            vectors.for_each(|vector| scope.remove(&irq_name(kind, vector)));
        }
        (IrqAction::Trigger, IrqData::EventFd) => {
            if fds.len() != vectors.len() {
                return Err(RequestError::Descriptors { have: fds.len(), count });
            }
            let kept: Vec<_> = fds.iter().map(|fd| fd.try_clone()).collect();
            irqs.connect(kind, vectors.start, fds)?;
            for (vector, fd) in vectors.zip(kept) {
                if let Ok(fd) = fd {
                    hold(scope, &irq_name(kind, vector), &fd);
                }
            }
        }
        // A VMM that gets this answer for INTx falls back to unmasking by message.
        (_, IrqData::EventFd) => return Err(RequestError::Unsupported { what: "masking by event" }),
        _ if kind != IrqKind::Intx => {
            return Err(RequestError::Unsupported { what: "masking message-signalled interrupts" });
        }
        (action, IrqData::None) => irqs.mask_intx(action == IrqAction::Mask),
        (action, IrqData::Bool) => {
            if booleans(data, count)?.first().is_some_and(|first| *first != 0) {
                irqs.mask_intx(action == IrqAction::Mask);
            }
        }
    }
    Ok(())
}

/// The name of an interrupt's descriptor while it is held for the next daemon.
fn irq_name(kind: IrqKind, vector: usize) -> String {
    format!("s/irq.{}.{vector}", kind.name())
}

fn booleans(data: &[u8], count: u32) -> Result<&[u8], RequestError> {
    let layout = size_of::<SetIrqs>();
    let (have, need) = (layout + data.len(), layout + count as usize);
    data.get(..count as usize).ok_or(RequestError::Payload { have, need })
}
