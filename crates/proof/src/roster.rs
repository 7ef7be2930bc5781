//! [`Roster`]: who has a manager, as configurations say at this moment. Each process reads it when it starts.

use std::sync::Arc;

use cairn_types::NodeId;
use parking_lot::Mutex;

use crate::keyring::Keyring;
use crate::plug::Plug;

/// Places with a manager and their addresses, in the order in which they came.
pub struct Roster {
    members: Mutex<Vec<(usize, String)>>,
    /// So many places began with a manager: the nodes there keep those numbers, and the keys with them.
    first: usize,
    /// What all places have for who they are.
    pub keys: Keyring,
}

/// The number that a manager in this place has in its group and as a node.
pub fn manager_number(place: usize) -> u32 {
    place as u32 + 1
}

impl Roster {
    /// The first managers.
    pub fn new(first: &[Arc<Plug>], keys: Keyring) -> Arc<Self> {
        let members = first.iter().enumerate().map(|(place, plug)| (place, plug.address())).collect();
        Arc::new(Self { members: Mutex::new(members), first: first.len(), keys })
    }

    /// One more.
    pub fn add(&self, place: usize, address: String) {
        let mut members = self.members.lock();
        if !members.iter().any(|(known, _)| *known == place) {
            members.push((place, address));
        }
    }

    /// One less.
    pub fn remove(&self, place: usize) {
        self.members.lock().retain(|(known, _)| *known != place);
    }

    /// Whether a manager is in this place.
    pub fn has(&self, place: usize) -> bool {
        self.members.lock().iter().any(|(known, _)| *known == place)
    }

    /// Whether one was there from the beginning.
    pub fn began_with(&self, place: usize) -> bool {
        place < self.first
    }

    /// Where they are.
    pub fn places(&self) -> Vec<usize> {
        self.members.lock().iter().map(|(place, _)| *place).collect()
    }

    /// How they are reached.
    pub fn addresses(&self) -> Vec<String> {
        self.members.lock().iter().map(|(_, address)| address.clone()).collect()
    }

    /// Their numbers and addresses.
    pub fn numbers(&self) -> Vec<(NodeId, String)> {
        let member = |(place, address): &(usize, String)| (NodeId(manager_number(*place)), address.clone());
        self.members.lock().iter().map(member).collect()
    }
}
