package ec2

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"spillway.dev/spillway/providers"
)

// failure maps what a call has come to onto the contract, once. Nil stays nil.
// What is not known here stays OutcomeUnknown.
func failure(op string, err error) error {
	if err == nil {
		return nil
	}
	e := &providers.Error{Kind: providers.OutcomeUnknown, Op: op, Err: err}
	if code := codeOf(err); code != "" {
		e.Kind, e.Scope = meaning(code)
		if code == "RequestExpired" || code == "RequestTimeTooSkewed" {
			e.Err = fmt.Errorf("%w (check the clock of this machine: a signature is good for 15 minutes)", err)
		}
	}
	if res, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && res.Response != nil {
		e.RetryAfter = wait(res.Response.Header)
		if res.HTTPStatusCode() == http.StatusTooManyRequests {
			e.Kind, e.Scope = providers.Throttled, providers.ScopeAccount
		}
	}
	if v, ok := errors.AsType[*verdict](err); ok {
		e.Kind, e.Scope = v.kind, v.scope
	}
	return e
}

// verdict is what the driver itself has found out about a call.
type verdict struct {
	kind  providers.Kind
	scope providers.Scope
	err   error
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// codeOf is the API's own name for its refusal, or "" when it has said nothing. To
// an answer without a name, that of a proxy on the way, the SDK gives one that
// means nothing here.
func codeOf(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}

// wait reads how long the cloud wants to be left alone.
func wait(h http.Header) time.Duration {
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		return time.Duration(s) * time.Second
	}
	return 0
}

// meaning reads the error codes of the EC2 API Reference. The status says less
// than they do: no stock is a server error there.
// cases: D-35 ray-project/ray#57206
func meaning(code string) (providers.Kind, providers.Scope) {
	switch code {
	case "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity", "Server.InsufficientInstanceCapacity":
		return providers.SoldOut, providers.ScopeOffer
	case "VcpuLimitExceeded", "InstanceLimitExceeded":
		// The limit is one of a family of types. As wide as the offer, it never
		// hits what another limit allows.
		// cases: D-42 kubernetes-sigs/karpenter#2275
		return providers.LimitReached, providers.ScopeOffer
	case "InsufficientFreeAddressesInSubnet", "InsufficientAddressCapacity":
		return providers.LimitReached, providers.ScopeZone
	case "VolumeLimitExceeded", "MaxIOPSLimitExceeded", "NetworkInterfaceLimitExceeded", "ResourceLimitExceeded",
		"PrivateIpAddressLimitExceeded", "Client.VolumeLimitExceeded":
		return providers.LimitReached, providers.ScopeRegion
	case "RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "RequestThrottledException",
		"EC2ThrottledException", "BandwidthLimitExceeded":
		return providers.Throttled, providers.ScopeAccount
	case "ConcurrentTagAccess":
		return providers.Throttled, providers.ScopeOffer
	case "AuthFailure", "UnauthorizedOperation", "MissingAuthenticationToken", "InvalidClientTokenId", "IncompleteSignature",
		"SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed", "ExpiredToken", "ExpiredTokenException", "AccessDenied",
		"AccessDeniedException", "UnrecognizedClientException", "OptInRequired", "Blocked", "PendingVerification":
		return providers.Unauthorized, providers.ScopeAccount
	case "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed":
		return providers.NotFound, providers.ScopeOffer
	case "IdempotentInstanceTerminated", // the token's machine was there and is gone
		"Unsupported", "UnsupportedOperation", "InvalidParameterValue", "InvalidParameterCombination", "InvalidParameterDependency",
		"InvalidParameter", "MissingParameter", "UnknownParameter", "InvalidUserData.Malformed", "InvalidBlockDeviceMapping",
		"TagLimitExceeded", "OperationNotPermitted", "VolumeTypeNotAvailableInZone", "InvalidInput", "MalformedQueryString":
		return providers.Rejected, providers.ScopeOffer
	}
	for _, setting := range []string{"InvalidAMIID.", "InvalidSubnetID.", "InvalidSubnet", "InvalidGroup.", "InvalidSecurityGroupID.", "InvalidSecurityGroupId."} {
		if strings.HasPrefix(code, setting) {
			return providers.Rejected, providers.ScopeRegion
		}
	}
	return providers.OutcomeUnknown, ""
}

// gone reports whether the API itself says that there is no such part.
func gone(err error) bool {
	code := codeOf(err)
	return code == "InvalidVolume.NotFound" || code == "InvalidNetworkInterfaceID.NotFound"
}

// ended is the answer for a token or an id whose machine is over.
func ended(kind providers.Kind, id string) error {
	return &verdict{kind, providers.ScopeOffer, fmt.Errorf("instance %s has terminated", id)}
}
