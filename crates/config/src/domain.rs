//! What libvirt calls a VM.

use toml::Spanned;

use super::VmConfig;
use super::check::{Checker, places};
use super::raw::RawVm;

/// Bytes of a libvirt domain's name.
const LONGEST: usize = 255;

impl Checker<'_> {
    /// A domain's name, or a UUID.
    pub(crate) fn domain(&mut self, vm: &str, domain: &Spanned<String>) -> Option<String> {
        let text = domain.get_ref();
        let wrong = |letter: char| letter.is_control() || letter == '/';
        if text.is_empty() || text.len() > LONGEST || text.contains(wrong) {
            let text = format!(
                "{vm}: domain = {text:?}: write the name or the UUID of its libvirt domain, of 1 to {LONGEST} bytes"
            );
            self.problem(domain.span(), text);
            return None;
        }
        let groups = text.split('-').map(str::len);
        let is_uuid =
            groups.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        Some(if is_uuid { text.to_ascii_lowercase() } else { text.clone() })
    }

    /// A domain is one VM at most.
    pub(crate) fn unique_domains(&mut self, vms: &[VmConfig], raw: &[Spanned<RawVm>]) {
        let called = |vm: &VmConfig| vm.domain.clone().unwrap_or_else(|| vm.name.clone());
        for (number, (vm, own)) in vms.iter().zip(raw).enumerate() {
            let Some(place) = own.get_ref().domain.as_ref().map(Spanned::span) else { continue };
            let other = vms.iter().enumerate().find(|(at, other)| {
                *at != number && called(other) == called(vm) && (*at < number || other.domain.is_none())
            });
            if let Some((at, other)) = other {
                let text = format!(
                    "vm {:?}: domain = {:?} is the domain of vm {:?}, too; give each a domain of its own",
                    vm.name,
                    called(vm),
                    other.name
                );
                let of_other = raw.get(at).map(|other| other.get_ref());
                let of_other = of_other
                    .map(|other| places(if other.domain.is_some() { &other.domain } else { &other.name }));
                let of: Vec<_> = of_other.into_iter().flatten().chain([place.clone()]).collect();
                self.conflict(place, &of, text);
            }
        }
    }
}
