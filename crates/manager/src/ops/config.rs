//! GetConfig and SetConfig: the cluster's settings.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, ConfigValue, SetConfig};
use cairn_manager_core::{Key, Outcome};
use cairn_types::ErrorCode;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ConfigItem, GetConfigResponse, SetConfigRequest, SetConfigResponse};

/// Most settings of one request.
const ITEMS_MAX: usize = 1000;

impl Manager {
    pub(crate) fn get_config(&self) -> Result<GetConfigResponse, WireError> {
        self.look(|state, _| {
            let item = |key: &Key| ConfigItem {
                key: key.name().into(),
                value: state.config().text(*key).into(),
                default_value: key.default_value().into(),
                help: key.help().into(),
            };
            GetConfigResponse { items: Key::ALL.iter().map(item).collect() }
        })
    }

    pub(crate) async fn set_config(&self, request: SetConfigRequest) -> Result<SetConfigResponse, WireError> {
        let items = values(request.items)?;
        self.permit()?;
        self.check_private(&items)?;
        let told = items.clone();
        let outcome = self.execute(Command::SetConfig(SetConfig { items })).await?;
        Ok(answer(outcome, || {
            told.iter().for_each(|item| tracing::warn!(key = %item.key, value = %item.value, "setting changed"));
        }))
    }
}

/// As they are logged.
pub(super) fn values(items: Vec<ConfigItem>) -> Result<Vec<ConfigValue>, WireError> {
    if items.len() > ITEMS_MAX {
        return Err(WireError::new(ErrorCode::BadRequest, "too many settings at once"));
    }
    Ok(items.into_iter().map(|item| ConfigValue { key: item.key, value: item.value }).collect())
}

/// All mistakes, or nothing; `changed` when there are none.
pub(super) fn answer(outcome: Outcome, changed: impl FnOnce()) -> SetConfigResponse {
    match outcome {
        Outcome::Mistakes(mistakes) => SetConfigResponse { mistakes },
        _ => {
            changed();
            SetConfigResponse::default()
        }
    }
}
