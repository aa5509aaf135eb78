//! `DEVICE_SET_IRQS`: connecting, testing and masking interrupts.
//!
//! What QEMU sends: INTx goes on with one descriptor and off with "no data, count 0"; MSI-X goes on
//! with count 1 and *no* descriptor, then each vector follows in a message of its own; at each end of
//! a line interrupt comes an unmask without data. Everything else the VFIO interface allows is
//! either carried out or refused with an errno.

use std::os::fd::OwnedFd;

use vmlane_wire::vfio_user::{IrqAction, IrqData, SetIrqs, irq_index};

use super::error::RequestError;
use super::request::{Requests, fixed};
use crate::irq::IrqKind;

impl Requests<'_> {
    pub(super) fn set_irqs(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Result<(), RequestError> {
        let (set, data) = fixed::<SetIrqs>(payload)?;
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
        let end = start.checked_add(count).filter(|end| *end <= self.vectors(index));
        if end.is_none() {
            return Err(RequestError::Field {
                name: "interrupt range end",
                value: u64::from(start) + u64::from(count),
            });
        }
        let vectors = start as usize..(start + count) as usize;
        match (action, what) {
            (IrqAction::Trigger, IrqData::None) if count == 0 => {
                self.irqs.disable(kind);
                self.scope.remove_all(&format!("s/irq.{}.", kind.name()));
            }
            _ if count == 0 => return Err(RequestError::Field { name: "interrupt count", value: 0 }),
            (IrqAction::Trigger, IrqData::None) => vectors.for_each(|vector| self.irqs.trigger(kind, vector)),
            (IrqAction::Trigger, IrqData::Bool) => {
                let wanted = booleans(data, payload.len(), count)?;
                vectors
                    .zip(wanted)
                    .filter(|(_, on)| **on != 0)
                    .for_each(|(vector, _)| self.irqs.trigger(kind, vector));
            }
            (IrqAction::Trigger, IrqData::EventFd) if fds.is_empty() => {
                self.irqs.disconnect(kind, vectors.start, vectors.len());
                vectors.for_each(|vector| self.scope.remove(&irq_name(kind, vector)));
            }
            (IrqAction::Trigger, IrqData::EventFd) => {
                if fds.len() != vectors.len() {
                    return Err(RequestError::Descriptors { have: fds.len(), count });
                }
                let kept: Vec<_> = fds.iter().map(|fd| fd.try_clone()).collect();
                self.irqs.connect(kind, vectors.start, fds)?;
                for (vector, fd) in vectors.zip(kept) {
                    if let Ok(fd) = fd {
                        self.hold(&irq_name(kind, vector), &fd);
                    }
                }
            }
            // A VMM that gets this answer for INTx falls back to unmasking by message.
            (_, IrqData::EventFd) => return Err(RequestError::Unsupported { what: "masking by event" }),
            _ if kind != IrqKind::Intx => {
                return Err(RequestError::Unsupported { what: "masking message-signalled interrupts" });
            }
            (action, IrqData::None) => self.irqs.mask_intx(action == IrqAction::Mask),
            (action, IrqData::Bool) => {
                if booleans(data, payload.len(), count)?.first().is_some_and(|first| *first != 0) {
                    self.irqs.mask_intx(action == IrqAction::Mask);
                }
            }
        }
        self.device.irqs_changed();
        Ok(())
    }
}

fn irq_name(kind: IrqKind, vector: usize) -> String {
    format!("s/irq.{}.{vector}", kind.name())
}

fn booleans(data: &[u8], payload: usize, count: u32) -> Result<&[u8], RequestError> {
    let need = size_of::<SetIrqs>() + count as usize;
    data.get(..count as usize).ok_or(RequestError::Payload { have: payload, need })
}
