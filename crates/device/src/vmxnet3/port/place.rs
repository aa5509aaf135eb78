//! Positions in rings of any size, as laps and indices.

/// A position in a ring. Laps start at 0; the driver's descriptors of an even lap have generation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place {
    pub index: u16,
    pub lap: u32,
}

impl Place {
    #[inline]
    pub fn generation(self) -> bool {
        self.lap & 1 == 0
    }

    /// The position behind, in a ring of any size.
    #[inline]
    pub fn next(self, size: u16) -> Place {
        let index = self.index.wrapping_add(1);
        if index < size { Place { index, ..self } } else { Place { index: 0, lap: self.lap.wrapping_add(1) } }
    }

    /// `steps` positions behind; at most a lap.
    pub fn after(self, steps: u16, size: u16) -> Place {
        let to = u32::from(self.index) + u32::from(steps.min(size));
        match to.checked_sub(u32::from(size)) {
            Some(index) => Place { index: index as u16, lap: self.lap.wrapping_add(1) },
            None => Place { index: to as u16, ..self },
        }
    }

    /// Is this position behind `other`, less than 2^31 laps away?
    pub fn is_behind(self, other: Place) -> bool {
        match self.lap.wrapping_sub(other.lap) as i32 {
            0 => self.index > other.index,
            laps => laps > 0,
        }
    }

    pub fn to_word(self) -> u64 {
        u64::from(self.lap) << 16 | u64::from(self.index)
    }

    /// A stored position, if a ring of `size` has it.
    pub fn from_word(word: u64, size: u16) -> Option<Place> {
        let place = Place { index: word as u16, lap: (word >> 16) as u32 };
        (place.index < size && word >> 48 == 0).then_some(place)
    }

    /// The position behind descriptor `index`, which is the next of that number.
    pub fn behind(self, index: u16, size: u16) -> Place {
        let lap = if index >= self.index { self.lap } else { self.lap.wrapping_add(1) };
        Place { index, lap }.next(size)
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn positions_wrap_by_comparison() {
        let mut place = Place::default();
        for _ in 0..33 {
            place = place.next(32);
        }
        assert_eq!(place, Place { index: 1, lap: 1 });
        assert!(!place.generation());
        assert_eq!(Place { index: 30, lap: 4 }.after(5, 32), Place { index: 3, lap: 5 });
        assert_eq!(Place { index: 30, lap: 4 }.after(1, 32), Place { index: 31, lap: 4 });
        let last = Place { index: 31, lap: u32::MAX };
        assert!(last.next(32).is_behind(last) && !last.is_behind(last.next(32)));
        assert_eq!(Place::default().next(1), Place { index: 0, lap: 1 });
    }
}
