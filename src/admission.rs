//! Admission of requests.
