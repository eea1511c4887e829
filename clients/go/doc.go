// Package reasondv1 holds the generated messages and stubs of reasond's gRPC services.
//
// Package reasond/clients/go/reasond is a client over them, with tokens, retries, typed errors and streams that resume.
package reasondv1
