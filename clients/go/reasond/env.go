package reasond

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// local matches targets that stay on this machine: a Unix socket, localhost or a loopback address.
var local = regexp.MustCompile(
	`(?i)^(unix:|unix-abstract:|((dns|passthrough):(//[^/]*/)?)?(localhost|127(\.\d{1,3}){3}|\[?::1\]?)(:\d+)?$)`)

// FromEnv makes a client from REASOND_TARGET, _TOKEN, _TLS, _CA_FILE, _TIMEOUT_S and _ALLOW_PLAINTEXT_TOKEN, and from
// options, which win. A CA file turns TLS on; unset and empty variables leave the defaults.
func FromEnv(options ...Option) (*Client, error) {
	transport, badTLS := transportFromEnv()
	isPlain, badPlain := isOn("ALLOW_PLAINTEXT_TOKEN")
	timeout, badTimeout := strconv.ParseFloat(variable("TIMEOUT_S", "120"), 64)
	if badTimeout != nil || !(timeout > 0) {
		badTimeout = fmt.Errorf("REASOND_TIMEOUT_S must be a number of seconds above 0, not %.40q", variable("TIMEOUT_S", ""))
	}
	if err := errors.Join(badTLS, badPlain, badTimeout); err != nil {
		return nil, fmt.Errorf("reasond: the environment cannot be used: %w", err)
	}
	fromEnv := func(c *Client) {
		c.transport, c.allowPlaintext = transport, isPlain
		c.timeout = time.Duration(min(timeout, 1e9) * float64(time.Second)) // "inf" is more than a Duration holds
		if token := variable("TOKEN", ""); token != "" {
			WithToken(token)(c)
		}
	}
	return NewClient(variable("TARGET", DefaultTarget), append([]Option{fromEnv}, options...)...)
}

func transportFromEnv() (credentials.TransportCredentials, error) {
	isTLS, err := isOn("TLS")
	if file := variable("CA_FILE", ""); file != "" && err == nil {
		return credentials.NewClientTLSFromFile(file, "")
	}
	if isTLS {
		return credentials.NewTLS(nil), nil
	}
	return insecure.NewCredentials(), err
}

func variable(name, unset string) string {
	return cmp.Or(strings.TrimSpace(os.Getenv("REASOND_"+name)), unset)
}

func isOn(name string) (bool, error) {
	switch strings.ToLower(variable(name, "0")) {
	case "1", "true", "yes", "on":
		return true, nil
	case "0", "false", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("REASOND_%s must be 1, true, yes, on, 0, false, no or off", name)
}
