//! [`Setting`]: what the whole cluster, or a volume, is set to.
use crate::connect::Client;
use crate::error::Result;
use cairn_wire::Opcode;
use cairn_wire::manager::{
    ConfigItem, GetConfigRequest, GetConfigResponse, SetConfigRequest, SetConfigResponse, SetVolumeRequest,
};

/// A setting, with what it means.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    pub key: String,
    /// In force.
    pub value: String,
    pub default_value: String,
    pub help: String,
}

/// A setting that is to be changed; an empty value: the default again, or of a volume the cluster's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSetting {
    pub key: String,
    pub value: String,
}

fn items(new: &[NewSetting]) -> Vec<ConfigItem> {
    let item =
        |one: &NewSetting| ConfigItem { key: one.key.clone(), value: one.value.clone(), ..ConfigItem::default() };
    new.iter().map(item).collect()
}

impl Client {
    /// All settings; `what` names the question in errors.
    pub async fn settings(&self, what: &str) -> Result<Vec<Setting>> {
        let found: GetConfigResponse = self.manager(what, Opcode::GetConfig, &GetConfigRequest {}).await?;
        let setting = |item: ConfigItem| {
            let ConfigItem { key, value, default_value, help } = item;
            Setting { key, value, default_value, help }
        };
        Ok(found.items.into_iter().map(setting).collect())
    }
    /// Changes settings of the cluster; all mistakes, and then nothing is set.
    pub async fn set_settings(&self, what: &str, new: &[NewSetting]) -> Result<Vec<String>> {
        let request = SetConfigRequest { items: items(new) };
        Ok(self.manager::<SetConfigResponse>(what, Opcode::SetConfig, &request).await?.mistakes)
    }
    /// The same of a volume.
    pub async fn set_volume(&self, what: &str, name: &str, new: &[NewSetting]) -> Result<Vec<String>> {
        let request = SetVolumeRequest { name: name.to_owned(), items: items(new) };
        Ok(self.manager::<SetConfigResponse>(what, Opcode::SetVolume, &request).await?.mistakes)
    }
}
