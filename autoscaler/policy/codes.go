package policy

// Codes of refusals. They are stable: people search for them, programs switch
// on them.
const (
	DataClassUnknown      = "DATA_CLASS_UNKNOWN"
	DataClassForbidsCloud = "DATA_CLASS_FORBIDS_CLOUD"
	DatasetNotStageable   = "DATASET_NOT_STAGEABLE"
	ResultPrefixMissing   = "RESULT_PREFIX_MISSING"
	TLSNotCacheable       = "TLS_NOT_CACHEABLE"
	PriorityNotEnabled    = "PRIORITY_CLASS_NOT_ENABLED"

	PVCNotBurstable     = "PVC_CLASS_NOT_BURSTABLE"
	PVCUnbound          = "PVC_UNBOUND_WFFC"
	LocalPV             = "LOCAL_PV"
	VolumeNotBurstable  = "VOLUME_NOT_BURSTABLE"
	HostPathForbidden   = "HOSTPATH_FORBIDDEN"
	HostNetwork         = "HOST_NETWORK"
	HostPort            = "HOST_PORT"
	PrivilegedForbidden = "PRIVILEGED_FORBIDDEN"
	WildcardToleration  = "WILDCARD_TOLERATION"
	DRAClaimUnsupported = "DRA_CLAIM_UNSUPPORTED"

	ProviderUnknown      = "PROVIDER_UNKNOWN"
	ProviderNotAllowed   = "PROVIDER_NOT_ALLOWED"
	RegionExcluded       = "REGION_EXCLUDED"
	JurisdictionLaw      = "JURISDICTION_LAW"
	JurisdictionFacts    = "JURISDICTION_FACTS_MISSING"
	JurisdictionNobody   = "JURISDICTION_NO_PROVIDER" // no provider passed, for a whole gang
	CertificationMissing = "PROVIDER_CERT_MISSING"
	CertificationExpired = "PROVIDER_CERT_EXPIRED"
	AgreementMissing     = "PROVIDER_AGREEMENT_MISSING"
	AgreementExpired     = "PROVIDER_AGREEMENT_EXPIRED"
	ProviderUnavailable  = "PROVIDER_CIRCUIT_OPEN"
	ProviderLeaving      = "PROVIDER_CORDONED"
	ProviderNoNodes      = "PROVIDER_CANNOT_HOST_NODES"
	PriceUnknown         = "PRICE_UNKNOWN"
)

// Jurisdictional reports whether a code says that the law, the place or the
// tenant's rules exclude a provider, whatever it sells.
func Jurisdictional(code string) bool {
	switch code {
	case ProviderUnknown, ProviderNotAllowed, RegionExcluded, JurisdictionLaw, JurisdictionFacts,
		CertificationMissing, CertificationExpired, AgreementMissing, AgreementExpired:
		return true
	}
	return false
}
