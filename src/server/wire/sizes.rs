//! How much memory decoded requests take, for those who limit it.
//!
//! A message may take many times its encoded size: an empty lock of an acquire is two bytes on the wire, and a hundred once decoded.

use lockkeeper_proto::v1::{AcquireRequest, RequestId, Want, pipeline_request::What as PipelineCall};

/// The bytes that a request of a pipeline has allocated. A few additions for a usual request.
pub(crate) fn allocated_bytes(asked: &PipelineCall) -> usize {
    match asked {
        PipelineCall::Acquire(acquire) => {
            acquire.session_id.capacity() + request_bytes(acquire.request.as_ref()) + wants_bytes(acquire)
        }
        PipelineCall::Release(release) => release.session_id.capacity() + request_bytes(release.request.as_ref()),
        PipelineCall::Check(check) => check.name.capacity(),
        PipelineCall::Get(get) => get.name.capacity(),
        PipelineCall::Cancel(_) => 0,
    }
}

fn wants_bytes(acquire: &AcquireRequest) -> usize {
    let wants = &acquire.locks;
    let named = wants.iter().map(|want| want.name.capacity() + want.data.as_ref().map_or(0, Vec::capacity));
    wants.capacity() * size_of::<Want>() + named.sum::<usize>()
}

fn request_bytes(request: Option<&RequestId>) -> usize {
    request.map_or(0, |request| request.kept.capacity() * size_of::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_proto::v1::ReleaseRequest;

    #[test]
    fn all_that_a_request_can_have_many_of_is_counted() {
        let empty = PipelineCall::Acquire(AcquireRequest::default());
        assert_eq!(allocated_bytes(&empty), 0);

        let want = Want { name: "x".repeat(500), data: Some(vec![7; 16_000]), ..Want::default() };
        let kept = RequestId { kept: vec![7; 1000], ..RequestId::default() };
        for (acquire, least) in [
            (AcquireRequest { locks: vec![Want::default(); 100_000], ..AcquireRequest::default() }, 5_000_000),
            (AcquireRequest { locks: vec![want], ..AcquireRequest::default() }, 16_500),
            (AcquireRequest { request: Some(kept.clone()), ..AcquireRequest::default() }, 8_000),
            (AcquireRequest { session_id: "x".repeat(9_000), ..AcquireRequest::default() }, 9_000),
        ] {
            let bytes = allocated_bytes(&PipelineCall::Acquire(acquire));
            assert!(bytes >= least, "{bytes} of {least}");
        }
        let release = ReleaseRequest { request: Some(kept), ..ReleaseRequest::default() };
        assert!(allocated_bytes(&PipelineCall::Release(release)) >= 8_000);
    }
}
