//! Lists of CPUs.

use std::fmt;
use std::str::FromStr;

use rustix::thread::CpuSet;

/// CPUs, as the kernel writes lists of them: `2-5,8`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// Why a text is no list of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no list of CPUs; write numbers and ranges from 0 to {}, for example \"2-5,8\"", CpuSet::MAX_CPU - 1)]
pub struct BadList;

impl FromStr for CpuList {
    type Err = BadList;

    fn from_str(text: &str) -> Result<CpuList, BadList> {
        let number = |text: &str| {
            let number: usize = text.trim().parse().map_err(|_| BadList)?;
            if number < CpuSet::MAX_CPU { Ok(number) } else { Err(BadList) }
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(BadList);
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList(cpus))
    }
}

impl CpuList {
    pub fn of(cpus: impl Iterator<Item = usize>) -> CpuList {
        CpuList(cpus.collect())
    }

    /// Is it one of them?
    pub fn has(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            one => one.iter().map(usize::to_string).collect(),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, written) in [("3", "3"), ("2-5,8", "2-5,8"), (" 1, 0 ,2-2", "0-2"), ("4,4-6,9", "4-6,9")] {
            assert_eq!(text.parse::<CpuList>().map(|list| list.to_string()), Ok(written.into()), "{text}");
        }
        for wrong in ["", "a", "5-2", "1-", "-1", "1,,2", "99999", "1-99999"] {
            assert_eq!(wrong.parse::<CpuList>(), Err(BadList), "{wrong}");
        }
    }
}
