//! [`Roster`]: who has a manager, as configurations say at this moment. Each process reads it when it starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_types::NodeId;
use parking_lot::Mutex;

use crate::keyring::Keyring;
use crate::plug::Plug;

/// Places with a manager and their addresses, in the order in which they came.
pub struct Roster {
    members: Mutex<Vec<(usize, String)>>,
    /// Places that have or had a manager: the node there keeps that number, and the key with it.
    managers_ever: Mutex<BTreeSet<usize>>,
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
        let managers_ever = Mutex::new((0..first.len()).collect());
        Arc::new(Self { members: Mutex::new(members), managers_ever, keys })
    }

    /// One more.
    pub fn add(&self, place: usize, address: String) {
        self.managers_ever.lock().insert(place);
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

    /// Whether one is there or was.
    pub fn had(&self, place: usize) -> bool {
        self.managers_ever.lock().contains(&place)
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
