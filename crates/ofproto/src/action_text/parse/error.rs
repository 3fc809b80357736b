//! Why a text is not a list of actions.

/// Why a text is not a list of actions, in words for the person who typed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActionTextError(pub(in crate::action_text) String);

/// What a part of a text says.
pub(in crate::action_text) type Parsed<T> = Result<T, ActionTextError>;

pub(in crate::action_text) fn err<T>(text: impl Into<String>) -> Parsed<T> {
    Err(ActionTextError(text.into()))
}
