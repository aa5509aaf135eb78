//! Classic BPF: programs as `tcpdump -ddd` prints them, checked once and run over packets.
//!
//! A program that was checked ends: jumps go forward only (their distances have no sign) and stay inside, and
//! its last instruction returns. Loads from a packet and from the scratch memory are checked; a load behind
//! the packet's end refuses the packet, as in the kernel. The encoding is that of McCanne and Jacobson, "The
//! BSD Packet Filter", 1993.

use std::fmt;
use std::str::FromStr;

/// Instructions that a program may have. `tcpdump` needs about five for each address of a filter.
pub const MAX_INSTRUCTIONS: usize = 1024;
/// Words of scratch memory.
const SCRATCH: usize = 16;
/// Offsets from here on mean something else than bytes of the packet (Linux: `SKF_AD_OFF`).
const NEGATIVE: u32 = 0x8000_0000;

/// What a program reads.
pub trait Packet {
    /// Bytes, all of them, whatever is recorded.
    fn len(&self) -> usize;

    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `at` on, which lie inside, into `out`.
    fn copy(&self, at: usize, out: &mut [u8]);
}

impl Packet for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy(&self, at: usize, out: &mut [u8]) {
        if let Some(bytes) = self.get(at..at + out.len()) {
            out.copy_from_slice(bytes);
        }
    }
}

/// Why a program is not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BpfError {
    #[error(
        "a program for a packet filter is expected as `tcpdump -ddd` prints it (a count, then four numbers a line); line \
         {line} is {text:?}"
    )]
    Syntax { line: usize, text: String },
    #[error("the program announces {announced} instructions and has {has}")]
    Count { announced: usize, has: usize },
    #[error(
        "a program has 1 to {MAX_INSTRUCTIONS} instructions, and this one has {0}; use a shorter expression"
    )]
    Length(usize),
    #[error("instruction {at}: operation {code:#06x} is not known")]
    Operation { at: usize, code: u16 },
    #[error("instruction {at}: jumps behind the program's end")]
    Jump { at: usize },
    #[error("instruction {at}: scratch word {index} of {SCRATCH}")]
    Scratch { at: usize, index: u32 },
    #[error("instruction {at}: divides by 0")]
    Division { at: usize },
    #[error("instruction {at}: shifts by {by} bits of 32")]
    Shift { at: usize, by: u32 },
    #[error(
        "instruction {at}: reads what only Linux' own packets have ({offset:#x}); compile with `tcpdump -y EN10MB -ddd`"
    )]
    Extension { at: usize, offset: u32 },
    #[error("the last instruction does not return")]
    NoReturn,
}

/// One instruction as it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant(u32),
    X,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Byte,
    Half,
    Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// An instruction that was checked. Distances and indices are inside their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    LoadAbsolute(Width, u32),
    LoadIndirect(Width, u32),
    LoadConstant(u32),
    LoadLength,
    LoadScratch(u8),
    LoadXConstant(u32),
    LoadXLength,
    LoadXScratch(u8),
    /// The length of the IPv4 header at the offset.
    LoadXHeader(u32),
    Store(u8),
    StoreX(u8),
    Compute(Arithmetic, Operand),
    Negate,
    Jump(u32),
    Branch(Test, Operand, u8, u8),
    Return(u32),
    ReturnA,
    AToX,
    XToA,
}

/// A program that was checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Program(Vec<Step>);

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instructions", self.0.len())
    }
}

impl FromStr for Program {
    type Err = BpfError;

    fn from_str(text: &str) -> Result<Program, BpfError> {
        let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
        let mut lines = lines.peekable();
        let syntax =
            |line: usize, text: &str| BpfError::Syntax { line, text: text.chars().take(80).collect() };
        let Some((first, number)) = lines.next() else { return Err(syntax(1, "")) };
        let announced: usize = first.trim().parse().map_err(|_| syntax(number, first))?;
        if announced == 0 || announced > MAX_INSTRUCTIONS {
            return Err(BpfError::Length(announced));
        }
        let mut instructions = Vec::with_capacity(announced);
        for (line, number) in lines.take(MAX_INSTRUCTIONS + 1) {
            instructions.push(instruction(line).ok_or_else(|| syntax(number, line))?);
        }
        if instructions.len() != announced {
            return Err(BpfError::Count { announced, has: instructions.len() });
        }
        Program::check(&instructions)
    }
}

fn instruction(line: &str) -> Option<Instruction> {
    let mut words = line.split_whitespace();
    let instruction = Instruction {
        code: words.next()?.parse().ok()?,
        jump_true: words.next()?.parse().ok()?,
        jump_false: words.next()?.parse().ok()?,
        k: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(instruction)
}

impl Program {
    /// Checks a program.
    pub fn check(instructions: &[Instruction]) -> Result<Program, BpfError> {
        let len = instructions.len();
        if len == 0 || len > MAX_INSTRUCTIONS {
            return Err(BpfError::Length(len));
        }
        let steps: Result<Vec<Step>, BpfError> =
            instructions.iter().enumerate().map(|(at, instruction)| step(at, *instruction, len)).collect();
        let steps = steps?;
        match steps.last() {
            Some(Step::Return(_) | Step::ReturnA) => Ok(Program(steps)),
            _ => Err(BpfError::NoReturn),
        }
    }

    /// How many bytes of the packet the program wants to be recorded; 0: it refuses the packet.
    pub fn run(&self, packet: &impl Packet) -> u32 {
        run(&self.0, packet).unwrap_or(0)
    }
}

/// Checks one instruction of a program of `len`.
fn step(at: usize, instruction: Instruction, len: usize) -> Result<Step, BpfError> {
    let Instruction { code, jump_true, jump_false, k } = instruction;
    let unknown = BpfError::Operation { at, code };
    let scratch = || match u8::try_from(k) {
        Ok(index) if usize::from(index) < SCRATCH => Ok(index),
        _ => Err(BpfError::Scratch { at, index: k }),
    };
    let offset = || if k < NEGATIVE { Ok(k) } else { Err(BpfError::Extension { at, offset: k }) };
    let operand = if code & 0x08 != 0 { Operand::X } else { Operand::Constant(k) };
    // The next instruction is number `at` + 1, and a jump goes on from there.
    let inside = |distance: u32| (distance as usize) < len - at - 1;
    Ok(match code {
        0x20 => Step::LoadAbsolute(Width::Word, offset()?),
        0x28 => Step::LoadAbsolute(Width::Half, offset()?),
        0x30 => Step::LoadAbsolute(Width::Byte, offset()?),
        0x40 => Step::LoadIndirect(Width::Word, k),
        0x48 => Step::LoadIndirect(Width::Half, k),
        0x50 => Step::LoadIndirect(Width::Byte, k),
        0x00 => Step::LoadConstant(k),
        0x60 => Step::LoadScratch(scratch()?),
        0x80 => Step::LoadLength,
        0x01 => Step::LoadXConstant(k),
        0x61 => Step::LoadXScratch(scratch()?),
        0x81 => Step::LoadXLength,
        0xb1 => Step::LoadXHeader(offset()?),
        0x02 => Step::Store(scratch()?),
        0x03 => Step::StoreX(scratch()?),
        0x05 if inside(k) => Step::Jump(k),
        0x05 => return Err(BpfError::Jump { at }),
        0x84 => Step::Negate,
        0x06 => Step::Return(k),
        0x16 => Step::ReturnA,
        0x07 => Step::AToX,
        0x87 => Step::XToA,
        _ => match (code & 0x07, code & 0xf0) {
            (0x04, kind) if code < 0x100 => {
                Step::Compute(arithmetic(at, kind, operand).ok_or(unknown)??, operand)
            }
            (0x05, kind) if code < 0x100 => {
                if !inside(jump_true.into()) || !inside(jump_false.into()) {
                    return Err(BpfError::Jump { at });
                }
                let test = match kind {
                    0x10 => Test::Equal,
                    0x20 => Test::Greater,
                    0x30 => Test::GreaterOrEqual,
                    0x40 => Test::AnyBit,
                    _ => return Err(unknown),
                };
                Step::Branch(test, operand, jump_true, jump_false)
            }
            _ => return Err(unknown),
        },
    })
}

/// None: there is no such operation.
fn arithmetic(at: usize, kind: u16, operand: Operand) -> Option<Result<Arithmetic, BpfError>> {
    let operation = match kind {
        0x00 => Arithmetic::Add,
        0x10 => Arithmetic::Sub,
        0x20 => Arithmetic::Mul,
        0x30 => Arithmetic::Div,
        0x40 => Arithmetic::Or,
        0x50 => Arithmetic::And,
        0x60 => Arithmetic::ShiftLeft,
        0x70 => Arithmetic::ShiftRight,
        0x90 => Arithmetic::Mod,
        0xa0 => Arithmetic::Xor,
        _ => return None,
    };
    Some(match (operation, operand) {
        (Arithmetic::Div | Arithmetic::Mod, Operand::Constant(0)) => Err(BpfError::Division { at }),
        (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(by @ 32..)) => {
            Err(BpfError::Shift { at, by })
        }
        _ => Ok(operation),
    })
}

/// None: a load behind the packet's end, or a division by 0.
#[inline]
fn compute(operation: Arithmetic, a: u32, by: u32) -> Option<u32> {
    Some(match operation {
        Arithmetic::Add => a.wrapping_add(by),
        Arithmetic::Sub => a.wrapping_sub(by),
        Arithmetic::Mul => a.wrapping_mul(by),
        Arithmetic::Div => a.checked_div(by)?,
        Arithmetic::Mod => a.checked_rem(by)?,
        Arithmetic::Or => a | by,
        Arithmetic::And => a & by,
        Arithmetic::Xor => a ^ by,
        Arithmetic::ShiftLeft => a.checked_shl(by).unwrap_or(0),
        Arithmetic::ShiftRight => a.checked_shr(by).unwrap_or(0),
    })
}

fn load(packet: &impl Packet, width: Width, at: u32) -> Option<u32> {
    let bytes = match width {
        Width::Byte => 1,
        Width::Half => 2,
        Width::Word => 4,
    };
    let at = at as usize;
    if at.checked_add(bytes)? > packet.len() {
        return None;
    }
    let mut word = [0; 4];
    packet.copy(at, word.get_mut(4 - bytes..)?);
    Some(u32::from_be_bytes(word))
}

fn run(steps: &[Step], packet: &impl Packet) -> Option<u32> {
    let (mut a, mut x) = (0u32, 0u32);
    let mut scratch = [0u32; SCRATCH];
    let mut next = 0;
    // Every instruction moves on by at least one: at most as many steps as there are instructions.
    loop {
        let step = *steps.get(next)?;
        next += 1;
        let value = |operand| match operand {
            Operand::Constant(k) => k,
            Operand::X => x,
        };
        match step {
            Step::LoadAbsolute(width, at) => a = load(packet, width, at)?,
            Step::LoadIndirect(width, at) => a = load(packet, width, x.checked_add(at)?)?,
            Step::LoadConstant(k) => a = k,
            Step::LoadLength => a = packet.len() as u32,
            Step::LoadScratch(index) => a = *scratch.get(usize::from(index))?,
            Step::LoadXConstant(k) => x = k,
            Step::LoadXLength => x = packet.len() as u32,
            Step::LoadXScratch(index) => x = *scratch.get(usize::from(index))?,
            Step::LoadXHeader(at) => x = 4 * (load(packet, Width::Byte, at)? & 0xf),
            Step::Store(index) => *scratch.get_mut(usize::from(index))? = a,
            Step::StoreX(index) => *scratch.get_mut(usize::from(index))? = x,
            Step::Compute(operation, operand) => a = compute(operation, a, value(operand))?,
            Step::Negate => a = a.wrapping_neg(),
            Step::Jump(distance) => next += distance as usize,
            Step::Branch(test, operand, jump_true, jump_false) => {
                let value = value(operand);
                let holds = match test {
                    Test::Equal => a == value,
                    Test::Greater => a > value,
                    Test::GreaterOrEqual => a >= value,
                    Test::AnyBit => a & value != 0,
                };
                next += usize::from(if holds { jump_true } else { jump_false });
            }
            Step::Return(k) => return Some(k),
            Step::ReturnA => return Some(a),
            Step::AToX => x = a,
            Step::XToA => a = x,
        }
    }
}

#[cfg(test)]
mod tests;
