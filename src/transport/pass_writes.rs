//! Writes of a stream that is wrapped for another purpose.

/// Implements [`AsyncWrite`](tokio::io::AsyncWrite) for a wrapper `W<S>` by the stream in its field, for wrappers that have to do with what
/// is read, or with how long the stream lives: `pass_writes!(W, field)`.
#[macro_export]
macro_rules! pass_writes {
    ($wrapper:ident, $field:tt) => {
        impl<S: ::tokio::io::AsyncRead + ::tokio::io::AsyncWrite + Unpin> ::tokio::io::AsyncWrite for $wrapper<S> {
            fn poll_write(
                self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.get_mut().$field).poll_write(context, bytes)
            }

            fn poll_flush(
                self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.get_mut().$field).poll_flush(context)
            }

            fn poll_shutdown(
                self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.get_mut().$field).poll_shutdown(context)
            }

            // Without these two, HTTP/2's frames would be copied together, or sent one by one.
            fn poll_write_vectored(
                self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                ::std::pin::Pin::new(&mut self.get_mut().$field).poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.$field.is_write_vectored()
            }
        }
    };
}
