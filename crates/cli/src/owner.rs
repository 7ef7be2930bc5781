//! Names of users and groups, from `/etc/passwd` and `/etc/group`; numbers are always understood.
//!
//! Not here: other sources of names (LDAP and the like); use numbers for users that the files do not have.
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Names and numbers of one file.
#[derive(Default, Debug)]
pub struct Names {
    by_id: BTreeMap<u32, String>,
    by_name: BTreeMap<String, u32>,
}

static USERS: LazyLock<Names> = LazyLock::new(|| Names::read("/etc/passwd"));
static GROUPS: LazyLock<Names> = LazyLock::new(|| Names::read("/etc/group"));

impl Names {
    fn read(path: &str) -> Names {
        // Without the file there are numbers only.
        std::fs::read(path).map(|text| Names::parse(&String::from_utf8_lossy(&text))).unwrap_or_default()
    }
    /// Lines `name:password:number:…`; the first of equal ones counts.
    fn parse(text: &str) -> Names {
        let mut names = Names::default();
        for line in text.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(Ok(id))) = (fields.next(), fields.nth(1).map(str::parse::<u32>)) {
                names.by_id.entry(id).or_insert_with(|| name.to_owned());
                names.by_name.entry(name.to_owned()).or_insert(id);
            }
        }
        names
    }
    fn name(&self, id: u32) -> String {
        self.by_id.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
    fn id(&self, text: &str) -> Option<u32> {
        self.by_name.get(text).copied().or_else(|| text.parse().ok())
    }
}

/// Name of a user, or the number.
pub fn user_name(uid: u32) -> String {
    USERS.name(uid)
}
/// Name of a group, or the number.
pub fn group_name(gid: u32) -> String {
    GROUPS.name(gid)
}

/// Whom `chown` gives a file to; `None`: stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewOwner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl NewOwner {
    /// `user`, `user:group`, `:group`, with names or numbers.
    pub fn parse(text: &str) -> Result<NewOwner, String> {
        Self::parse_with(text, &USERS, &GROUPS)
    }
    fn parse_with(text: &str, users: &Names, groups: &Names) -> Result<NewOwner, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, group),
            None => (text, ""),
        };
        if user.is_empty() && group.is_empty() {
            return Err(format!("{text:?} names no owner: write user, user:group or :group, by name or number"));
        }
        let find = |names: &Names, name: &str, what: &str, file: &str| match name {
            "" => Ok(None),
            name => names.id(name).map(Some).ok_or_else(|| {
                format!("there is no {what} {name:?} in {file}; write its number if only the cluster knows it")
            }),
        };
        Ok(NewOwner {
            uid: find(users, user, "user", "/etc/passwd")?,
            gid: find(groups, group, "group", "/etc/group")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file would be given to somebody else.
    #[test]
    fn owners_by_name_and_number() {
        let users = Names::parse("root:x:0:0::/root:/bin/sh\nbroken\nann:x:1001:100::/:/bin/sh\ntoor:x:0:0\n");
        let groups = Names::parse("staff:x:50:ann\n");
        let parse = |text: &str| NewOwner::parse_with(text, &users, &groups);
        assert_eq!(parse("ann:staff"), Ok(NewOwner { uid: Some(1001), gid: Some(50) }));
        assert_eq!(parse("ann:"), Ok(NewOwner { uid: Some(1001), gid: None }));
        assert_eq!(parse(":7"), Ok(NewOwner { uid: None, gid: Some(7) }));
        assert_eq!(parse("5"), Ok(NewOwner { uid: Some(5), gid: None }));
        assert!(parse("bob").is_err_and(|e| e.contains("bob") && e.contains("/etc/passwd")));
        assert!(parse(":").is_err());
        assert_eq!((users.name(0), users.name(9)), ("root".into(), "9".into()));
    }
}
