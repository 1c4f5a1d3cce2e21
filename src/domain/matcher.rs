//! Which requests an entry is for.
use crate::domain::config::FieldError;

/// A compiled `match` or `unless`.
#[derive(Clone, Debug, Default)]
pub struct Matcher {}

/// What a matcher may ask of a request.
pub trait Facts {
    /// `$host`.
    fn host(&mut self) -> &[u8];
    /// `$uri`.
    fn uri(&mut self) -> &[u8];
    /// The path of the request line, normalised as nginx does it; the same slice
    /// as `uri` where nothing was rewritten.
    fn line_path(&mut self) -> &[u8];
    fn method(&mut self) -> &[u8];
    /// All lines of a header, joined; `None` where there is none.
    fn header(&mut self, lower_name: &str) -> Option<&[u8]>;
}

/// What a matcher will ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub host: bool,
    pub path: bool,
    pub method: bool,
    /// Lower case, sorted, each once.
    pub headers: Vec<String>,
}

impl Needs {
    pub fn add(&mut self, _other: &Needs) {
        todo!()
    }
}

impl Matcher {
    pub fn parse(
        _value: &serde_json::Value,
        _field: &str,
        _errors: &mut Vec<FieldError>,
    ) -> Matcher {
        todo!()
    }

    /// `None`: no match. The text is that of the path pattern that matched, empty
    /// where there is no path condition.
    pub fn hit<'m>(&'m self, _facts: &mut impl Facts) -> Option<&'m str> {
        todo!()
    }

    pub fn needs(&self) -> Needs {
        todo!()
    }

    pub fn has_path(&self) -> bool {
        todo!()
    }
}

/// Writes the path of a request line into `out` (cleared first) as nginx
/// normalises it. `false`: nginx would refuse the request.
pub fn normalise_path(_request_uri: &[u8], _out: &mut Vec<u8>) -> bool {
    todo!()
}
