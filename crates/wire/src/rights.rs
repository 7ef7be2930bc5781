//! [`Rights`]: which volumes a client's key opens, and as which users, as its certificate says.
//!
//! Two texts, parts of a holder's name: `docs=rw+media=ro` (`*`: every volume) and `root`, `all`, `none` or
//! `only=1000+1001/1000`. Invariants: what decodes is written again as it was; a text has one meaning or none; what is
//! not named is not allowed. Volumes are named by their names, so that a key is made without asking anybody; servers
//! know which volume has a name. Not here: whose key it is (`holder`), where this is enforced (each service).

use std::fmt::{Display, Formatter};

use crate::common::Credentials;

/// Volumes that one key may name.
pub const VOLUMES_MAX: usize = 64;
/// Users, and groups, that one key may name.
pub const USERS_MAX: usize = 64;
/// Longest name of a volume.
const VOLUME_NAME_MAX: usize = 63;
/// The user and the group that others are made.
pub const NOBODY: u32 = 65_534;
/// Stands for every volume.
const EVERY: &str = "*";

/// What may be done with a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Nothing is changed.
    Read,
    /// Everything that a client does.
    Write,
}

impl Access {
    const fn text(self) -> &'static str {
        match self {
            Self::Read => "ro",
            Self::Write => "rw",
        }
    }

    /// `ro` or `rw`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Read, Self::Write].into_iter().find(|access| access.text() == text)
    }
}

/// As whom the holder may ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Users {
    /// As everybody, root too.
    Any,
    /// As everybody; root is made nobody.
    NoRoot,
    /// Everybody is made nobody.
    Nobody,
    /// As these users, with these groups; others are refused.
    Only {
        /// Ascending.
        uids: Vec<u32>,
        /// Ascending.
        gids: Vec<u32>,
    },
}

impl Users {
    /// These users and groups. `None`: none, or too many.
    pub fn only(mut uids: Vec<u32>, mut gids: Vec<u32>) -> Option<Self> {
        for list in [&mut uids, &mut gids] {
            list.sort_unstable();
            list.dedup();
            if list.is_empty() || list.len() > USERS_MAX {
                return None;
            }
        }
        Some(Self::Only { uids, gids })
    }

    fn parse(text: &str) -> Option<Self> {
        let numbers = |text: &str| text.split('+').map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>();
        match text {
            "none" => Some(Self::Any),
            "root" => Some(Self::NoRoot),
            "all" => Some(Self::Nobody),
            text => {
                let (uids, gids) = text.strip_prefix("only=")?.split_once('/')?;
                Self::only(numbers(uids)?, numbers(gids)?)
            }
        }
    }

    /// The user in whose name a request is done, of the one that it names; the error says who is allowed.
    pub fn judge(&self, who: Option<Credentials>) -> Result<Option<Credentials>, String> {
        let nobody = || Credentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
        match self {
            Self::Any => Ok(who),
            // A request that names nobody must not come to be root's.
            Self::NoRoot => Ok(Some(who.map_or_else(nobody, |who| Credentials {
                uid: if who.uid == 0 { NOBODY } else { who.uid },
                gid: if who.gid == 0 { NOBODY } else { who.gid },
                groups: who.groups.into_iter().filter(|group| *group != 0).collect(),
            }))),
            Self::Nobody => Ok(Some(nobody())),
            Self::Only { uids, gids } => {
                let Some(mut who) = who else { return Ok(Some(nobody())) };
                if !uids.contains(&who.uid) {
                    return Err(format!(
                        "is for the users {}, and the request is of user {}",
                        list(uids, ", "),
                        who.uid
                    ));
                }
                if !gids.contains(&who.gid) {
                    return Err(format!(
                        "is for the groups {}, and the request is of group {}",
                        list(gids, ", "),
                        who.gid
                    ));
                }
                who.groups.retain(|group| gids.contains(group));
                Ok(Some(who))
            }
        }
    }

    /// Whether something may be given to this user and group.
    pub fn may_own(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        match self {
            Self::Any => true,
            // Who is not root gives nothing to others, which is held against the files.
            Self::NoRoot | Self::Nobody => uid != Some(0) && gid != Some(0),
            Self::Only { uids, gids } => {
                uid.is_none_or(|uid| uids.contains(&uid)) && gid.is_none_or(|gid| gids.contains(&gid))
            }
        }
    }
}

fn list(numbers: &[u32], between: &str) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}

impl Display for Users {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("none"),
            Self::NoRoot => f.write_str("root"),
            Self::Nobody => f.write_str("all"),
            Self::Only { uids, gids } => write!(f, "only={}/{}", list(uids, "+"), list(gids, "+")),
        }
    }
}

/// What a client's key allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights {
    /// By name, ascending; `*` alone, or none of them.
    volumes: Vec<(String, Access)>,
    users: Users,
}

impl Rights {
    /// Every volume, as every user: what keys without rights have, and those of servers and administrators.
    pub fn everything() -> Self {
        Self { volumes: vec![(EVERY.to_owned(), Access::Write)], users: Users::Any }
    }

    /// In every volume the same.
    pub fn in_every_volume(access: Access, users: Users) -> Self {
        Self { volumes: vec![(EVERY.to_owned(), access)], users }
    }

    /// In these volumes. The error says which name cannot be one.
    pub fn in_volumes(mut volumes: Vec<(String, Access)>, users: Users) -> Result<Self, String> {
        volumes.sort();
        if volumes.is_empty() || volumes.len() > VOLUMES_MAX {
            return Err(format!("a key is for 1 to {VOLUMES_MAX} volumes"));
        }
        if let Some((name, _)) = volumes.iter().find(|(name, _)| !is_volume_name(name)) {
            return Err(format!("{name:?} is no volume's name"));
        }
        if let Some(twice) = volumes.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(format!("the volume {} is named twice", twice[0].0));
        }
        Ok(Self { volumes, users })
    }

    /// Whether there is nothing that a server has to look at.
    pub fn is_everything(&self) -> bool {
        self.users == Users::Any && self.of("") == Some(Access::Write)
    }

    /// What may be done with the volume of this name; `None`: it is as if it were not there.
    pub fn of(&self, volume: &str) -> Option<Access> {
        let found = self.volumes.iter().find(|(name, _)| name == EVERY || name == volume);
        found.map(|(_, access)| *access)
    }

    /// As whom.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// The two texts, of which [`parse`](Self::parse) makes it again.
    pub fn texts(&self) -> (String, String) {
        let volumes = self.volumes.iter().map(|(name, access)| format!("{name}={}", access.text()));
        (volumes.collect::<Vec<_>>().join("+"), self.users.to_string())
    }

    /// Of the texts for volumes and for users.
    pub fn parse(volumes: &str, users: &str) -> Option<Self> {
        let users = Users::parse(users)?;
        let volume = |text: &str| {
            let (name, access) = text.split_once('=')?;
            Some((name.to_owned(), Access::parse(access)?))
        };
        let volumes = volumes.split('+').map(volume).collect::<Option<Vec<_>>>()?;
        match &volumes[..] {
            [(name, access)] if name == EVERY => Some(Self::in_every_volume(*access, users)),
            _ => Self::in_volumes(volumes, users).ok(),
        }
    }
}

/// For people: `docs (ro), media (rw); root is made nobody`.
impl Display for Rights {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let volume = |(name, access): &(String, Access)| match name.as_str() {
            EVERY => format!("every volume ({})", access.text()),
            name => format!("{name} ({})", access.text()),
        };
        f.write_str(&self.volumes.iter().map(volume).collect::<Vec<_>>().join(", "))?;
        match &self.users {
            Users::Any => f.write_str("; as every user, root too"),
            Users::NoRoot => f.write_str("; root is made nobody"),
            Users::Nobody => f.write_str("; every user is made nobody"),
            Users::Only { uids, gids } => {
                write!(f, "; only users {}, groups {}", list(uids, ", "), list(gids, ", "))
            }
        }
    }
}

/// As the manager takes names of volumes.
fn is_volume_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=VOLUME_NAME_MAX).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Option<Credentials> {
        Some(Credentials { uid, gid, groups: groups.to_vec() })
    }

    /// A key would open another volume than it was made for, or more of it.
    #[test]
    fn rights_are_read_as_they_were_written_and_nothing_else_is() {
        for (volumes, users) in
            [("docs=rw", "root"), ("a=ro+b-2=rw", "none"), ("*=ro", "all"), ("x=rw", "only=0+1000/5+65534")]
        {
            let rights = Rights::parse(volumes, users).expect("rights");
            assert_eq!(rights.texts(), (volumes.to_owned(), users.to_owned()));
        }
        for (volumes, users) in [
            ("", "root"),
            ("docs", "root"),
            ("docs=wr", "root"),
            ("docs=rw+docs=ro", "root"),
            ("*=rw+docs=ro", "root"),
            ("-x=rw", "root"),
            ("a b=rw", "root"),
            ("docs=rw", ""),
            ("docs=rw", "Root"),
            ("docs=rw", "only=/"),
            ("docs=rw", "only=1"),
            ("docs=rw", "only=4294967296/1"),
        ] {
            assert_eq!(Rights::parse(volumes, users), None, "{volumes} {users}");
        }
    }

    /// A volume that the key does not name would be there for its holder, or one that it may only read be changed.
    #[test]
    fn what_is_not_named_is_not_allowed() {
        let rights = Rights::parse("docs=ro+media=rw", "root").expect("rights");
        assert_eq!(rights.of("docs"), Some(Access::Read));
        assert_eq!(rights.of("media"), Some(Access::Write));
        for other in ["", "doc", "docs2", "DOCS", "*"] {
            assert_eq!(rights.of(other), None, "{other}");
        }
        assert!(Access::Read < Access::Write);
        assert!(Rights::everything().is_everything() && Rights::everything().of("docs") == Some(Access::Write));
        for less in [("*=ro", "none"), ("*=rw", "root"), ("docs=rw", "none")] {
            assert!(!Rights::parse(less.0, less.1).expect("rights").is_everything(), "{less:?}");
        }
    }

    /// Root on a client's machine would be root in the files; or a user be another one.
    #[test]
    fn nobody_becomes_somebody_else_than_allowed() {
        assert_eq!(Users::NoRoot.judge(who(0, 0, &[0, 7])), Ok(who(NOBODY, NOBODY, &[7])));
        assert_eq!(Users::NoRoot.judge(who(1000, 0, &[])), Ok(who(1000, NOBODY, &[])));
        assert_eq!(Users::NoRoot.judge(who(1000, 100, &[27])), Ok(who(1000, 100, &[27])));
        assert_eq!(Users::Nobody.judge(who(1000, 100, &[27])), Ok(who(NOBODY, NOBODY, &[])));
        assert_eq!(Users::Any.judge(who(0, 0, &[0])), Ok(who(0, 0, &[0])));
        let only = Users::only(vec![1001, 1000], vec![100]).expect("users");
        assert_eq!(only.judge(who(1000, 100, &[0, 100])), Ok(who(1000, 100, &[100])));
        assert!(only.judge(who(0, 100, &[])).is_err() && only.judge(who(1000, 0, &[])).is_err());
        // Who names nobody is nobody, where root is kept out.
        for users in [Users::NoRoot, Users::Nobody, only.clone()] {
            assert_eq!(users.judge(None), Ok(who(NOBODY, NOBODY, &[])), "{users:?}");
            assert!(!users.may_own(Some(0), None) && !users.may_own(None, Some(0)), "{users:?}");
        }
        assert!(only.may_own(Some(1001), Some(100)) && !only.may_own(Some(1002), None));
    }
}
