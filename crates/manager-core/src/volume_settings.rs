//! Settings of one volume, in the place of the cluster's: changed with `cairn admin volume set`.
//!
//! Invariant: stored values are valid, each by itself and with the others; every change is checked whole, all mistakes
//! are told at once, and nothing is set if there is any. What is not set is as the cluster has it. Not here: the
//! cluster's ([`crate::config`]).
use crate::config::{Config, Key, flaw};
use cairn_wire::manager::ConfigItem;
use std::collections::BTreeMap;

/// What a volume may have of its own. Whoever does not know one refuses it: a new one needs a new feature level.
pub const KEYS: [Key; 3] = [Key::PrivateData, Key::RebalanceAbove, Key::RebalanceBelow];

/// The values that were set, also where they are the same as the cluster's.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct VolumeSettings {
    values: BTreeMap<Key, String>,
}

impl VolumeSettings {
    /// What was set.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &str)> {
        self.values.iter().map(|(key, value)| (*key, value.as_str()))
    }

    /// What was set, as others see it.
    pub fn items(&self) -> Vec<ConfigItem> {
        let item = |(key, value): (Key, &str)| ConfigItem {
            key: key.name().into(),
            value: value.into(),
            ..Default::default()
        };
        self.iter().map(item).collect()
    }

    /// The number in force.
    ///
    /// # Panics
    /// When `key` is no number.
    pub fn number(&self, key: Key, cluster: &Config) -> u64 {
        self.own(key).unwrap_or_else(|| cluster.number(key))
    }

    /// Whether what is in force is `on`.
    ///
    /// # Panics
    /// When `key` is neither on nor off.
    pub fn is_on(&self, key: Key, cluster: &Config) -> bool {
        self.values.get(&key).map_or_else(|| cluster.number(key) == 1, |value| value == "on")
    }

    fn own(&self, key: Key) -> Option<u64> {
        self.values.get(&key).map(|value| value.parse().expect("stored values are valid"))
    }

    /// Sets what is valid; an empty value means the cluster's. All mistakes are told at once, and then nothing is set.
    pub fn set<'a>(&mut self, items: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Vec<String>> {
        let (mut next, mut mistakes) = (self.clone(), Vec::new());
        for (name, value) in items {
            let value = value.trim();
            let Some(key) = Key::from_name(name).filter(|key| KEYS.contains(key)) else {
                let name: String = name.chars().take(64).collect();
                let known: Vec<&str> = KEYS.iter().map(|key| key.name()).collect();
                mistakes.push(format!("{name:?} is no setting of a volume; there are {}", known.join(", ")));
                continue;
            };
            if value.is_empty() {
                next.values.remove(&key);
            } else if let Some(mistake) = flaw(key, value) {
                mistakes.push(format!("{name} = {value:?}: {mistake}"));
            } else {
                next.values.insert(key, value.to_string());
            }
        }
        if let (Some(above), Some(below)) = (next.own(Key::RebalanceAbove), next.own(Key::RebalanceBelow))
            && (1..below).contains(&above)
        {
            mistakes.push(format!(
                "rebalance_below = {below} is more than rebalance_above = {above}: a disk that gets groups would have to give them"
            ));
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        *self = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume would keep what it cannot have, half of a change be in force, or the cluster's value be lost for it.
    #[test]
    fn set_and_put_back() {
        let (mut cluster, mut volume) = (Config::default(), VolumeSettings::default());
        assert_eq!(volume.set([("rebalance_above", "90")]), Ok(()));
        assert_eq!(cluster.set([("rebalance_above", "80"), ("rebalance_below", "50")]), Ok(()));
        let limits = [Key::RebalanceAbove, Key::RebalanceBelow];
        let of = |volume: &VolumeSettings| limits.map(|key| volume.number(key, &cluster));
        assert_eq!(of(&volume), [90, 50], "a value that is the default is a value, too");
        let wrong = [("rebalance_above", "100"), ("repair_rate", "1m"), ("rebalance_below", "x")];
        let mistakes = volume.set(wrong.into_iter().chain([("rebalance_below", "60")])).expect_err("three mistakes");
        assert_eq!(mistakes.len(), 3, "{mistakes:?}");
        assert!(
            mistakes[1].contains("\"repair_rate\" is no setting of a volume; there are private_data, rebalance_above")
        );
        assert_eq!(of(&volume), [90, 50]);
        let mistakes = volume.set([("rebalance_below", "91")]).expect_err("above the ceiling");
        assert!(mistakes[0].contains("rebalance_below = 91 is more than rebalance_above = 90"), "{mistakes:?}");
        assert_eq!(volume.set([("rebalance_above", "0"), ("rebalance_below", "91")]), Ok(()), "there is no ceiling");
        assert_eq!(volume.set([("rebalance_above", ""), ("rebalance_below", "")]), Ok(()));
        assert_eq!(volume, VolumeSettings::default());
        assert_eq!(of(&volume), [80, 50]);
    }

    /// A volume would lose what the cluster has for all, or could not be the one that differs.
    #[test]
    fn data_is_private_by_the_volume_else_by_the_cluster() {
        let (mut cluster, mut volume) = (Config::default(), VolumeSettings::default());
        let is = |volume: &VolumeSettings, cluster: &Config| volume.is_on(Key::PrivateData, cluster);
        assert!(!is(&volume, &cluster));
        assert_eq!(volume.set([("private_data", "on")]), Ok(()));
        assert!(is(&volume, &cluster));
        assert_eq!(cluster.set([("private_data", "on")]), Ok(()));
        assert_eq!(volume.set([("private_data", "off")]), Ok(()));
        assert!(!is(&volume, &cluster) && is(&VolumeSettings::default(), &cluster));
        assert!(volume.set([("private_data", "yes")]).is_err());
    }
}
