//! The row `kvm.doorbell`: how fast a guest of a few instructions rings a doorbell that KVM hands to an event
//! fd, as the kick of a virtio ring is. Each ring is an exit from the guest to the kernel, and back. Where
//! /dev/kvm does not open there is no such row.
#![allow(unsafe_code)] // KVM reads and writes the guest's memory by its address; see `Guest::new`

use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::report::{Registry, Sample};

/// Where the guest's only page is, and where its doorbell: no memory is there.
const CODE: u64 = 0x1000;
const DOORBELL: u64 = 0xd0000;
const PAGE: usize = 4096;
/// Rings of a run of the guest.
const RINGS: u16 = 1000;

/// In real mode: ES is where the doorbell is; CX times a byte is written there; then it halts.
const PROGRAM: [u8; 15] = [
    0xb8,
    0x00,
    0xd0, // mov ax, 0xd000
    0x8e,
    0xc0, // mov es, ax
    0xb9,
    (RINGS & 0xff) as u8,
    (RINGS >> 8) as u8, // mov cx, RINGS
    0x26,
    0xa2,
    0x00,
    0x00, // mov [es:0], al
    0xe2,
    0xfa, // loop
    0xf4, // hlt
];

/// Adds the row, where there is KVM.
pub fn register(registry: &mut Registry) {
    match Guest::new() {
        Ok(mut guest) => registry.add("kvm.doorbell", "rings/s", &[], move |length| guest.measure(length)),
        Err(error) => eprintln!("left out: the row kvm.doorbell: {error}"),
    }
}

struct Guest {
    vcpu: VcpuFd,
    doorbell: EventFd,
    _vm: VmFd,
    _memory: Page,
}

/// Unmapped when the VM that uses it is gone.
struct Page(*mut core::ffi::c_void);

impl Page {
    fn new() -> io::Result<Page> {
        // SAFETY: a new mapping, which no one else knows of.
        Ok(Page(unsafe {
            mmap_anonymous(null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        }))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and used by the VM only, which is dropped before.
        let _ = unsafe { munmap(self.0, PAGE) };
    }
}

impl Guest {
    fn new() -> io::Result<Guest> {
        let vm = Kvm::new().and_then(|kvm| kvm.create_vm()).map_err(of)?;
        let memory = Page::new()?;
        // SAFETY: the page is writable and longer than the program; no guest runs yet.
        unsafe { memory.0.cast::<u8>().copy_from(PROGRAM.as_ptr(), PROGRAM.len()) };
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: CODE,
            memory_size: PAGE as u64,
            userspace_addr: memory.0 as u64,
        };
        // SAFETY: the page is mapped for as long as the VM is there, and nothing of Rust's is in it.
        unsafe { vm.set_user_memory_region(region) }.map_err(of)?;
        let vcpu = vm.create_vcpu(0).map_err(of)?;
        let mut sregs = vcpu.get_sregs().map_err(of)?;
        (sregs.cs.base, sregs.cs.selector) = (0, 0);
        vcpu.set_sregs(&sregs).map_err(of)?;
        let doorbell = EventFd::new(EFD_NONBLOCK)?;
        vm.register_ioevent(&doorbell, &IoEventAddress::Mmio(DOORBELL), NoDatamatch).map_err(of)?;
        let mut guest = Guest { vcpu, doorbell, _vm: vm, _memory: memory };
        guest.run()?;
        Ok(guest)
    }

    /// Rings until it halts. Anything else is an error: the guest is ours.
    fn run(&mut self) -> io::Result<()> {
        let mut regs = self.vcpu.get_regs().map_err(of)?;
        (regs.rip, regs.rflags) = (CODE, 2);
        self.vcpu.set_regs(&regs).map_err(of)?;
        match self.vcpu.run().map_err(of)? {
            VcpuExit::Hlt => {}
            other => return Err(io::Error::other(format!("the guest ended with {other:?}"))),
        }
        match self.doorbell.read()? {
            count if count == u64::from(RINGS) => Ok(()),
            count => Err(io::Error::other(format!("{count} of {RINGS} rings arrived"))),
        }
    }

    fn measure(&mut self, length: Duration) -> io::Result<Sample> {
        let (began, mut rings) = (Instant::now(), 0);
        while began.elapsed() < length {
            self.run()?;
            rings += u64::from(RINGS);
        }
        Ok(Sample::rate(rings, began.elapsed()))
    }
}

fn of(error: kvm_ioctls::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}
