//! VMXNET3's descriptors and completions as a driver has them: its own reading of `vmxnet3_defs.h`, not the
//! device's.

use vmlane_wire::ethernet::Tci;
use vmlane_wire::vmxnet3::desc::{OffloadMode, RxCompletion, RxDesc, RxLayers, TxCompletion, TxDesc};

/// Bits `[at, at + width)` of a word.
fn bits(word: u64, at: u32, width: u32) -> u64 {
    word >> at & ((1 << width) - 1)
}

/// A descriptor of `len` bytes at `addr`, of generation 0. `len` is at most 16384.
pub fn tx_desc(addr: u64, len: usize) -> TxDesc {
    TxDesc::from_words(addr, len as u64 & 0x3fff)
}

/// A buffer of less than 16384 bytes.
pub fn rx_desc(addr: u64, len: usize, body: bool, generation: bool) -> RxDesc {
    RxDesc::from_words(addr, len as u64 & 0x3fff | u64::from(body) << 14 | u64::from(generation) << 31)
}

/// What a driver writes into a transmit descriptor.
pub trait TxFields: Sized {
    /// With a value at bit `at` of the control word, which was 0 there.
    fn with(self, at: u32, value: u64) -> Self;

    fn with_generation(self, generation: bool) -> Self {
        self.with(14, generation.into())
    }

    fn with_end(self, completion: bool) -> Self {
        self.with(44, 1).with(45, completion.into())
    }

    /// Mode, `hlen` and `msscof`.
    fn with_offload(self, mode: OffloadMode, header: u16, mss_or_field: u16) -> Self {
        let mode = match mode {
            OffloadMode::None => 0,
            OffloadMode::Encapsulated => 1,
            OffloadMode::Checksum => 2,
            OffloadMode::Segment => 3,
        };
        self.with(42, mode).with(32, u64::from(header) & 0x3ff).with(18, u64::from(mss_or_field) & 0x3fff)
    }

    /// `ext1`.
    fn with_inner(self) -> Self {
        self.with(17, 1)
    }

    /// `oco`.
    fn with_outer_sum(self) -> Self {
        self.with(15, 1)
    }

    /// `dtype`, of which only 0 is defined.
    fn with_unknown_type(self) -> Self {
        self.with(16, 1)
    }

    fn with_tag(self, tag: Tci) -> Self {
        self.with(47, 1).with(48, tag.0.into())
    }
}

impl TxFields for TxDesc {
    fn with(self, at: u32, value: u64) -> TxDesc {
        TxDesc::from_words(self.addr, self.control() | value << at)
    }
}

/// A transmit completion. None if there are bits that must be 0.
pub fn tx_completion(low: u64, high: u64) -> Option<TxCompletion> {
    (low >> 12 == 0 && high << 1 == 0).then_some(TxCompletion { index: low as u16 })
}

/// What a driver reads in a receive completion.
pub trait RxFields {
    /// Its two words, of generation 0.
    fn raw(&self) -> [u64; 2];

    /// Bits of the first word.
    fn low(&self, at: u32, width: u32) -> u64 {
        bits(self.raw()[0], at, width)
    }

    /// Bits of the second one.
    fn high(&self, at: u32, width: u32) -> u64 {
        bits(self.raw()[1], at, width)
    }

    fn index(&self) -> u16 {
        self.low(0, 12) as u16
    }

    /// Queue, queue + n or queue + 2n, of n receive queues.
    fn ring(&self) -> u16 {
        self.low(16, 10) as u16
    }

    fn is_start(&self) -> bool {
        self.low(15, 1) != 0
    }

    fn is_end(&self) -> bool {
        self.low(14, 1) != 0
    }

    fn is_error(&self) -> bool {
        self.high(14, 1) != 0
    }

    fn len(&self) -> usize {
        self.high(0, 14) as usize
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `cnc`: the checksums were not checked.
    fn is_unchecked(&self) -> bool {
        self.low(30, 1) != 0
    }

    /// `tuc` and `ipc`, as they stand.
    fn good_bits(&self) -> (bool, bool) {
        (self.high(48, 1) != 0, self.high(51, 1) != 0)
    }

    /// `good`: not unchecked and every bit that a driver wants is set.
    fn layers(&self) -> RxLayers {
        let (l4, ip) = self.good_bits();
        let v4 = self.high(53, 1) != 0;
        RxLayers {
            v4,
            v6: self.high(52, 1) != 0,
            tcp: self.high(50, 1) != 0,
            udp: self.high(49, 1) != 0,
            fragment: self.high(54, 1) != 0,
            good: !self.is_unchecked() && l4 && (ip || !v4),
        }
    }

    fn is_frame_good(&self) -> bool {
        self.high(55, 1) != 0
    }

    fn tag(&self) -> Option<Tci> {
        (self.high(15, 1) != 0).then(|| Tci(self.high(16, 16) as u16))
    }

    /// Kind number and hash, of an ordinary completion.
    fn hash(&self) -> (u8, u32) {
        (self.low(26, 4) as u8, self.low(32, 32) as u32)
    }

    /// Type, 3 or 4.
    fn kind(&self) -> u8 {
        self.high(56, 7) as u8
    }

    /// Segments and their size, if this is the first completion of an aggregate.
    fn aggregate(&self) -> Option<(u8, u16)> {
        (self.kind() == 4).then(|| (self.low(32, 8) as u8, self.high(32, 16) as u16))
    }

    /// `csum`: of an ordinary completion, always 0.
    fn sum(&self) -> u16 {
        self.high(32, 16) as u16
    }
}

impl RxFields for RxCompletion {
    fn raw(&self) -> [u64; 2] {
        self.words(false)
    }
}
