//! What was assumed, left out or looks wrong in a description, for people: a note about many devices is said once.

use std::collections::HashMap;

use crate::error::shown;

/// The most devices that one note names.
const MOST_NAMED: usize = 4;
/// The most different texts that are kept: a broken file can have as many as it has lines.
const MOST_TEXTS: usize = 64;

/// Notes in the order in which their texts first came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notes {
    texts: Vec<NoteText>,
    /// Where each text stands.
    places: HashMap<String, usize>,
    /// Notes whose text was one too many.
    left_out: usize,
}

/// A text, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NoteText {
    text: String,
    devices: Vec<String>,
    /// Whether it is about the whole description.
    whole: bool,
}

impl Notes {
    /// Adds a note about a device; `text` is a sentence of which the device is the subject or the place.
    pub fn about(&mut self, device: impl Into<String>, text: impl Into<String>) {
        let (device, text) = (device.into(), text.into());
        match self.place(text) {
            Some(place) => self.texts[place].devices.push(device),
            None => self.left_out += 1,
        }
    }

    /// Adds a note about the whole description. The same text is kept once.
    pub fn add(&mut self, text: impl Into<String>) {
        match self.place(text.into()) {
            Some(place) => self.texts[place].whole = true,
            None => self.left_out += 1,
        }
    }

    fn place(&mut self, text: String) -> Option<usize> {
        if let Some(place) = self.places.get(&text) {
            return Some(*place);
        }
        if self.texts.len() == MOST_TEXTS {
            return None;
        }
        self.places.insert(text.clone(), self.texts.len());
        self.texts.push(NoteText { text, devices: Vec::new(), whole: false });
        Some(self.texts.len() - 1)
    }

    /// Takes away what was noted about a device.
    pub fn forget(&mut self, device: &str) {
        self.texts.iter_mut().for_each(|text| text.devices.retain(|other| other != device));
    }

    /// The notes as lines: `0000:3b:00.0: its speed …`, or `4 times (a, b, c, d): its speed …`.
    pub fn lines(self) -> Vec<String> {
        let mut lines = Vec::with_capacity(self.texts.len() + 1);
        for NoteText { text, devices, whole } in self.texts {
            match &devices[..] {
                [] if whole => lines.push(text),
                [] => {}
                [one] => lines.push(format!("{}: {text}", shown(one))),
                all => {
                    let named: Vec<_> = all.iter().take(MOST_NAMED).map(|device| shown(device)).collect();
                    let named = named.join(", ");
                    let more = all.len().saturating_sub(MOST_NAMED);
                    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                    lines.push(format!("{} times ({named}{more}): {text}", all.len()));
                }
            }
        }
        if self.left_out > 0 {
            lines.push(format!("and {} notes of other kinds", self.left_out));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_said_once_with_its_devices() {
        let mut notes = Notes::default();
        (0..6).for_each(|device| notes.about(format!("d{device}"), "slow"));
        notes.about("x", "odd");
        notes.add("whole");
        notes.add("whole");
        notes.about("gone", "forgotten");
        notes.forget("gone");
        notes.forget("d5");
        assert_eq!(notes.lines(), ["5 times (d0, d1, d2, d3 and 1 more): slow", "x: odd", "whole"]);
    }

    #[test]
    fn notes_are_bounded() {
        let mut notes = Notes::default();
        (0..1000).for_each(|number| notes.add(format!("n{number}")));
        let lines = notes.lines();
        assert_eq!((lines.len(), &*lines[MOST_TEXTS]), (MOST_TEXTS + 1, "and 936 notes of other kinds"));
    }
}
