package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BurstProvider is one account in one region of one cloud, reached by a
// driver, with the facts about its law that policy decides on.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=spillway,shortName=bp
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.spec.driver`
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`
// +kubebuilder:printcolumn:name="Country",type=string,JSONPath=`.spec.country`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].reason`
// +kubebuilder:printcolumn:name="Unavailable Until",type=string,JSONPath=`.status.unavailableUntil`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BurstProvider struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BurstProviderSpec   `json:"spec"`
	Status BurstProviderStatus `json:"status,omitempty"`
}

// BurstProviderSpec is what the operator states about a provider.
//
// +kubebuilder:validation:XValidation:rule="self.driver != 'ec2' || (has(self.machines) && has(self.machines.image) && has(self.machines.subnets) && size(self.machines.subnets) > 0)",message="driver ec2 needs machines.image and machines.subnets: the id of one subnet for each zone that machines may be bought in"
// +kubebuilder:validation:XValidation:rule="self.driver == oldSelf.driver && self.region == oldSelf.region",message="driver and region of a provider are final: machines of the old account would be lost; create another BurstProvider"
type BurstProviderSpec struct {
	// Driver is the API that the cloud speaks.
	// +kubebuilder:validation:Enum=fake;openstack;ec2
	Driver string `json:"driver"`
	// Endpoint of the cloud's API; empty means the driver's default.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Region string `json:"region"`
	// Country is the ISO 3166 code of where the machines stand.
	// +kubebuilder:validation:Pattern=`^[A-Z]{2}$`
	Country string `json:"country"`
	// CredentialsSecret is a Secret in the system namespace.
	// +kubebuilder:validation:MinLength=1
	CredentialsSecret string `json:"credentialsSecret"`
	// Legal says whose law the provider is subject to.
	Legal LegalFacts `json:"legal"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Certifications []Certification `json:"certifications,omitempty"`
	// ProcessingAgreement is the data processing agreement (GDPR Art. 28).
	// +optional
	ProcessingAgreement *Evidence `json:"processingAgreement,omitempty"`
	// Meter is how the provider bills; empty takes the driver's own rule.
	// +optional
	Meter *MeterRule `json:"meter,omitempty"`
	// Prices per hour by instance type override what the driver reports.
	// +optional
	Prices map[string]Money `json:"prices,omitempty"`
	// Machines says what the driver makes machines of; openstack needs image and
	// network, ec2 needs image and subnets.
	// +optional
	Machines MachineSettings `json:"machines,omitempty"`
	// +optional
	Limits ProviderLimits `json:"limits,omitempty"`
	// +optional
	Join JoinSettings `json:"join,omitempty"`
	// Staging is the object store in the provider's region, for ciphertext only.
	// +optional
	Staging *StagingStore `json:"staging,omitempty"`
	// Transfer is what it takes to move inputs to the provider; without it a plan
	// says that it does not reckon with that.
	// +optional
	Transfer *Transfer `json:"transfer,omitempty"`
}

// Transfer is a line over which inputs are moved to a provider.
type Transfer struct {
	// MiBPerSecond is the rate at which they arrive there.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MiBPerSecond int32 `json:"mibPerSecond"`
	// PricePerGiB is what each GiB costs in all, whoever bills it, in the currency
	// of the machines; empty means nothing. Parts of a MiB count as a whole one.
	// +optional
	PricePerGiB Money `json:"pricePerGiB,omitempty"`
}

// MachineSettings are what a cloud's machines are made of, in its own names or
// ids. A name must be unique there.
type MachineSettings struct {
	// Image to boot from.
	// +optional
	Image string `json:"image,omitempty"`
	// Network that machines are attached to.
	// +optional
	Network string `json:"network,omitempty"`
	// Subnets that machines are attached to, by id, for ec2: the first one in a
	// zone is taken, and machines are bought only in zones that have one.
	// +kubebuilder:validation:MaxItems=16
	// +listType=set
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// SecurityGroups of their ports, by id for ec2; none means the account's
	// default.
	// +listType=set
	// +optional
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// AddressNetwork is where each machine's public address comes from; empty
	// means that machines get none. For ec2 it can be amazon only, the cloud's own
	// pool.
	// +optional
	AddressNetwork string `json:"addressNetwork,omitempty"`
	// DiskGiB is the size of the root volume for ec2; 200 unless stated, and
	// never less than the image has. Other clouds' instance types say it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	// +optional
	DiskGiB int32 `json:"diskGiB,omitempty"`
	// GPUs by instance type are the operator's own statements; they win over
	// what the cloud says and what its names suggest.
	// +optional
	GPUs map[string]GPUStatement `json:"gpus,omitempty"`
}

// GPUStatement says which GPUs an instance type has.
type GPUStatement struct {
	// Model is the name that quotas and tariffs use.
	// +optional
	Model string `json:"model,omitempty"`
	// Count of whole devices; 0 keeps the instance type out of the offers.
	// +kubebuilder:validation:Minimum=0
	Count int32 `json:"count"`
}

// LegalFacts are the facts that jurisdiction rules look at. They are the
// operator's statements, with evidence, never the software's opinion.
type LegalFacts struct {
	// Seat is the ISO 3166 code of the provider's legal seat.
	// +kubebuilder:validation:Pattern=`^[A-Z]{2}$`
	Seat string `json:"seat"`
	// Owner names who controls the provider in the end.
	// +kubebuilder:validation:MinLength=1
	Owner string `json:"owner"`
	// OwnerCountry is the ISO 3166 code of the owner's seat.
	// +kubebuilder:validation:Pattern=`^[A-Z]{2}$`
	OwnerCountry string `json:"ownerCountry"`
	// SubjectTo lists laws that reach the provider, for example us-cloud-act.
	// +listType=set
	// +optional
	SubjectTo []string `json:"subjectTo,omitempty"`
	// Evidence for these statements; policy fails closed without it.
	// +optional
	Evidence *Evidence `json:"evidence,omitempty"`
}

// Certification is one certificate of the provider, such as C5.
type Certification struct {
	// +kubebuilder:validation:MinLength=1
	Name     string `json:"name"`
	Evidence `json:",inline"`
}

// Evidence is a link with the dates that bound its worth.
type Evidence struct {
	// +kubebuilder:validation:MinLength=1
	Link     string      `json:"link"`
	Reviewed metav1.Time `json:"reviewed"`
	Expires  metav1.Time `json:"expires"`
}

// MeterRule is how a provider bills a machine.
type MeterRule struct {
	// Start is the moment at which the meter starts: created when the cloud
	// accepted the request, started when the machine first ran.
	// +kubebuilder:validation:Enum=created;started
	Start string `json:"start"`
	// Granularity is the unit that is rounded up to: 1s, 1m, 1h.
	Granularity metav1.Duration `json:"granularity"`
	// +optional
	Minimum metav1.Duration `json:"minimum,omitempty"`
	// ClockAligned bills every unit of the wall clock that is touched.
	// +optional
	ClockAligned bool `json:"clockAligned,omitempty"`
	// +optional
	BilledWhenStopped bool `json:"billedWhenStopped,omitempty"`
}

// ProviderLimits bound what is bought there at one time.
type ProviderLimits struct {
	// +kubebuilder:validation:Minimum=0
	// +optional
	Machines *int32 `json:"machines,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	GPUs *int32 `json:"gpus,omitempty"`
	// +optional
	SpendPerDay Money `json:"spendPerDay,omitempty"`
}

// JoinSettings bound how long a machine may take, counted from MachineBought.
type JoinSettings struct {
	// BootTime is what a boot usually takes, for the planner.
	// +optional
	BootTime metav1.Duration `json:"bootTime,omitempty"`
	// JoinDeadline ends the burst when the node has not registered.
	// +optional
	JoinDeadline metav1.Duration `json:"joinDeadline,omitempty"`
	// ReadyDeadline ends the burst when the GPUs are not allocatable.
	// +optional
	ReadyDeadline metav1.Duration `json:"readyDeadline,omitempty"`
}

// StagingStore is an S3 endpoint for ciphertext near the provider's machines.
type StagingStore struct {
	// +kubebuilder:validation:MinLength=1
	Endpoint string `json:"endpoint"`
	// +optional
	Region string `json:"region,omitempty"`
	// Secret in the system namespace with accessKey and secretKey.
	// +kubebuilder:validation:MinLength=1
	Secret string `json:"secret"`
}

// BurstProviderStatus is what was seen of a provider.
type BurstProviderStatus struct {
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// UnavailableUntil keeps the whole provider out of plans until then.
	// +optional
	UnavailableUntil *metav1.Time `json:"unavailableUntil,omitempty"`
	// +optional
	UnavailableReason string `json:"unavailableReason,omitempty"`
	// Unavailable are single offers that refused, kept out until a time.
	// +listType=map
	// +listMapKey=offer
	// +optional
	Unavailable []UnavailableOffer `json:"unavailable,omitempty"`
	// Offers are what the cloud sold when it was asked last, the first 500, prices as it states
	// them. They are for people to read; decisions are made on fresher ones.
	// +listType=atomic
	// +optional
	Offers []SeenOffer `json:"offers,omitempty"`
	// OffersSeen is when the cloud told them. It is moved on every ten minutes,
	// or when the offers change.
	// +optional
	OffersSeen *metav1.Time `json:"offersSeen,omitempty"`
	// Learned is what machines turned out to be as nodes: the next plan reckons
	// with it, whatever the offer says.
	// +listType=map
	// +listMapKey=instanceType
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Learned []LearnedMachine `json:"learned,omitempty"`
}

// LearnedMax is how many types of machines are remembered of a provider.
const LearnedMax = 100

// LearnedMachine is what machines of a type were as nodes when the last of them
// had joined.
type LearnedMachine struct {
	InstanceType string `json:"instanceType"`
	// MilliCPU, Memory and Disk (bytes) and Pods are what the kubelet left for
	// pods, of several nodes the least.
	MilliCPU int64 `json:"milliCPU"`
	Memory   int64 `json:"memory"`
	Disk     int64 `json:"disk"`
	Pods     int64 `json:"pods"`
	// Labels are those that say what GPUs a node has.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	At     metav1.Time       `json:"at"`
}

// The conditions of a BurstProvider.
const (
	// ProviderHealthy is True while the cloud tells its offers, Unknown when it
	// has not answered lately, and False when it has not for so long that its
	// offers are not believed any more, or refuses its credentials. Nothing is
	// bought where it is False.
	ProviderHealthy = "Healthy"

	ReasonOffersTold   = "OffersTold"
	ReasonNoAnswer     = "NoAnswer"
	ReasonUnauthorized = "Unauthorized"

	// ProviderAsOffered is False when a machine turned out to be less than its
	// offer had let expect, or to have other GPUs. Plans reckon with what it is.
	ProviderAsOffered = "MachinesAsOffered"

	ReasonAsOffered = "AsOffered"
	ReasonDiffers   = "Differs"
)

// SeenOffer is one thing that a cloud sells.
type SeenOffer struct {
	// +optional
	Zone         string `json:"zone,omitempty"`
	InstanceType string `json:"instanceType"`
	// +optional
	CapacityType string `json:"capacityType,omitempty"`
	GPUModel     string `json:"gpuModel"`
	GPUs         int32  `json:"gpus"`
	GPUResource  string `json:"gpuResource"`
	MilliCPU     int64  `json:"milliCPU"`
	MemoryMiB    int64  `json:"memoryMiB"`
	// +optional
	DiskGiB int64 `json:"diskGiB,omitempty"`
	// PricePerHour of one machine; empty where the cloud tells none.
	// +optional
	PricePerHour Money `json:"pricePerHour,omitempty"`
	// +optional
	SoldOut bool `json:"soldOut,omitempty"`
}

// UnavailableOffer is an offer that the market refused.
type UnavailableOffer struct {
	Offer  string      `json:"offer"`
	Until  metav1.Time `json:"until"`
	Reason string      `json:"reason"`
}

// BurstProviderList is a list of BurstProviders.
//
// +kubebuilder:object:root=true
type BurstProviderList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BurstProvider `json:"items"`
}
