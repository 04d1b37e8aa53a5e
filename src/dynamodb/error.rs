//! Errors as DynamoDB's clients expect them: the type decides whether an SDK tries again, and which exception it raises.

use serde::{Serialize, Serializer, ser::SerializeMap as _};

use crate::{DynamoStoreError, Item, decoded::DecodeRefused};

/// Maximum number of bytes of a message. Some messages repeat parts of a request, which may be large.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The result of an operation.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that a client receives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Error {
    pub(crate) kind: ErrorType,
    pub(crate) message: String,
    /// The item for which a condition was false, if the request asks for it.
    pub(crate) item: Option<Item>,
    /// The reasons, one for each part of a transaction.
    pub(crate) reasons: Vec<CancellationReason>,
    /// Whether the connection is closed after the answer.
    pub(crate) ends_connection: bool,
}

/// The reason why a part of a transaction stopped it, or that it did not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CancellationReason {
    pub(crate) code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) item: Option<Item>,
}

/// The types of errors in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorType {
    AccessDenied,
    ConditionalCheckFailed,
    IdempotentParameterMismatch,
    IncompleteSignature,
    InternalServerError,
    InvalidSignature,
    MissingAuthenticationToken,
    RequestTooLarge,
    ResourceInUse,
    ResourceNotFound,
    Serialization,
    /// No node can answer now. Nothing happened.
    ServiceUnavailable,
    Throttled,
    TransactionCanceled,
    UnknownOperation,
    UnrecognizedClient,
    Validation,
}

impl ErrorType {
    /// Returns the shape's full name, and the HTTP status.
    fn shape(self) -> (&'static str, u16) {
        match self {
            Self::AccessDenied => ("com.amazon.coral.service#AccessDeniedException", 400),
            Self::ConditionalCheckFailed => ("com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", 400),
            Self::IdempotentParameterMismatch => {
                ("com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException", 400)
            }
            Self::IncompleteSignature => ("com.amazon.coral.service#IncompleteSignatureException", 400),
            Self::InternalServerError => ("com.amazonaws.dynamodb.v20120810#InternalServerError", 500),
            Self::InvalidSignature => ("com.amazon.coral.service#InvalidSignatureException", 400),
            Self::MissingAuthenticationToken => ("com.amazon.coral.service#MissingAuthenticationTokenException", 400),
            Self::RequestTooLarge => ("com.amazon.coral.service#RequestEntityTooLargeException", 413),
            Self::ResourceInUse => ("com.amazonaws.dynamodb.v20120810#ResourceInUseException", 400),
            Self::ResourceNotFound => ("com.amazonaws.dynamodb.v20120810#ResourceNotFoundException", 400),
            Self::Serialization => ("com.amazon.coral.service#SerializationException", 400),
            Self::ServiceUnavailable => ("com.amazonaws.dynamodb.v20120810#ServiceUnavailable", 503),
            Self::Throttled => ("com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException", 400),
            Self::TransactionCanceled => ("com.amazonaws.dynamodb.v20120810#TransactionCanceledException", 400),
            Self::UnknownOperation => ("com.amazon.coral.service#UnknownOperationException", 400),
            Self::UnrecognizedClient => ("com.amazon.coral.service#UnrecognizedClientException", 400),
            Self::Validation => ("com.amazon.coral.validate#ValidationException", 400),
        }
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            message.push('…');
        }
        Self { kind, message, item: None, reasons: Vec::new(), ends_connection: false }
    }

    /// The request can never succeed.
    pub(crate) fn validation(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Validation, message)
    }

    /// The request can never succeed. The message starts as most of these do.
    pub(crate) fn parameters(message: impl AsRef<str>) -> Self {
        Self::validation(format!("One or more parameter values were invalid: {}", message.as_ref()))
    }

    /// A value violates its constraint.
    pub(crate) fn constraint(value: impl AsRef<str>, at: &str, constraint: &str) -> Self {
        let value = value.as_ref();
        Self::validation(format!(
            "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: {constraint}"
        ))
    }

    /// A condition was false.
    pub(crate) fn condition_failed(item: Option<Item>) -> Self {
        Self { item, ..Self::new(ErrorType::ConditionalCheckFailed, "The conditional request failed") }
    }

    /// The table of an operation on items does not exist.
    pub(crate) fn no_table() -> Self {
        Self::new(ErrorType::ResourceNotFound, "Requested resource not found")
    }

    pub(crate) fn cancelled(reasons: Vec<CancellationReason>) -> Self {
        let codes: Vec<_> = reasons.iter().map(|reason| reason.code).collect();
        let message = format!(
            "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]",
            codes.join(", ")
        );
        Self { reasons, ..Self::new(ErrorType::TransactionCanceled, message) }
    }

    /// Removes items that a client asked to see.
    pub(crate) fn without_items(self) -> Self {
        let reasons = self.reasons.into_iter().map(|reason| CancellationReason { item: None, ..reason }).collect();
        Self { item: None, reasons, ..self }
    }

    pub(crate) fn status(&self) -> u16 {
        self.kind.shape().1
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("__type", self.kind.shape().0)?;
        // There is no `Message` as well: rusoto takes both for one member, and cannot read an error that has it twice. All SDKs read this
        // one.
        map.serialize_entry("message", &self.message)?;

        if let Some(item) = &self.item {
            map.serialize_entry("Item", item)?;
        }
        if !self.reasons.is_empty() {
            map.serialize_entry("CancellationReasons", &self.reasons)?;
        }
        map.end()
    }
}

impl From<DecodeRefused> for Error {
    fn from(refused: DecodeRefused) -> Self {
        let kind = if refused.is_passing() { ErrorType::Throttled } else { ErrorType::Validation };
        Self::new(kind, refused.to_string())
    }
}

impl From<DynamoStoreError> for Error {
    fn from(error: DynamoStoreError) -> Self {
        match error {
            // SDKs back off at this error, and lock clients go on. A full store has room again after clients have released locks or deleted
            // items.
            DynamoStoreError::Overloaded(message) | DynamoStoreError::Full(message) => {
                Self::new(ErrorType::Throttled, message)
            }
            DynamoStoreError::Denied(message) => Self::new(ErrorType::AccessDenied, message),
            DynamoStoreError::TooLarge(message) => Self::validation(message),
            DynamoStoreError::Unavailable(message) => Self::new(ErrorType::ServiceUnavailable, message),
            DynamoStoreError::Unknown(message) => Self::new(ErrorType::InternalServerError, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rusoto reads an error into: two members of one meaning are an error of their own.
    #[derive(serde::Deserialize)]
    struct AsRusotoReads {
        #[serde(rename = "__type")]
        kind: Option<String>,
        #[serde(alias = "Message")]
        message: Option<String>,
    }

    #[test]
    fn an_error_has_one_message() {
        let reasons = vec![CancellationReason { code: "None", message: None, item: None }];
        for error in [Error::condition_failed(None), Error::cancelled(reasons), Error::no_table()] {
            let json = serde_json::to_string(&error).unwrap();
            let read: AsRusotoReads = serde_json::from_str(&json).unwrap_or_else(|problem| panic!("{json}: {problem}"));
            assert_eq!(read.message, Some(error.message));
            assert!(read.kind.is_some_and(|kind| kind.contains('#')));
        }
    }

    #[test]
    fn each_failure_of_the_store_has_the_type_that_sdks_treat_right() {
        let shape = |error: DynamoStoreError| Error::from(error).kind.shape();
        let text = String::new;
        let (full, status) = shape(DynamoStoreError::Full(text()));
        assert!(full.ends_with("#ProvisionedThroughputExceededException") && status == 400, "{full} {status}");
        let (unavailable, status) = shape(DynamoStoreError::Unavailable(text()));
        assert!(unavailable.ends_with("#ServiceUnavailable") && status == 503, "{unavailable} {status}");
        let (unknown, status) = shape(DynamoStoreError::Unknown(text()));
        assert!(unknown.ends_with("#InternalServerError") && status == 500, "{unknown} {status}");
    }

    #[test]
    fn a_message_that_repeats_a_large_value_is_cut() {
        let error = Error::validation("ü".repeat(1 << 20));
        assert!(error.message.len() <= MESSAGE_BYTES_MAX + '…'.len_utf8(), "{}", error.message.len());
    }
}
