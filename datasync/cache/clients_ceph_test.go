//go:build ceph

package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	awstypes "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7"
)

// Programs that people use do the same at home and on a burst node: the same
// commands with the same URL, which leads once to a real Ceph gateway and once
// through front and gate. What they say and bring is the same, and so is what
// the gateway holds at the end.
//
// cases: E4 ovh roadmap#781, E5, E10 pydio/cells#873 (s3cmd speaks to bucket.NAME), H1
func TestRealClients(t *testing.T) {
	home, away := newRig(t), newRig(t)
	away.stage(t)
	sites := []*clientSite{newClientSite(t, home, "127.0.0.1"), newClientSite(t, away, "127.0.0.2")}
	sites[1].serve(t, away)
	for name, script := range clientScripts() {
		t.Run(name, func(t *testing.T) {
			var said [2]string
			for i, s := range sites {
				said[i] = s.run(t, script)
			}
			if said[0] != said[1] {
				t.Errorf("direct:\n%s\nthrough the front:\n%s", said[0], said[1])
			}
			t.Log(said[0])
		})
	}
	for name, options := range map[string]func(*awss3.Options){
		"aws-sdk-go-v2": func(*awss3.Options) {},
		"aws-sdk-go-v2 for older stores": func(o *awss3.Options) {
			o.RequestChecksumCalculation, o.ResponseChecksumValidation = aws.RequestChecksumCalculationWhenRequired, aws.ResponseChecksumValidationWhenRequired
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sdkCalls(t, home.store.Addr(), options), sdkCalls(t, away.addr(), options)
			if a != b {
				t.Errorf("direct:\n%s\nthrough the front:\n%s", a, b)
			}
			t.Log(a)
		})
	}
	if a, b := listAll(minio.ListObjectsOptions{Recursive: true})(t, home.root), listAll(minio.ListObjectsOptions{Recursive: true})(t, away.root); a != b || a == "" {
		t.Errorf("the gateways differ at the end; direct:\n%s\nthrough the front:\n%s", a, b)
	}
	if s := away.front.Stats(); s.Hits < 4 {
		t.Errorf("the front answered only %d times itself: %+v", s.Hits, s)
	}
	refused := map[string]bool{}
	for _, line := range away.audits.reasons() {
		refused[line] = true
	}
	if fmt.Sprint(refused) != `map[GET of s3://other/x is not among what the burst may reach:true sub-resource "acl" is not for burst nodes:true]` {
		t.Errorf("the gate refused: %v", refused)
	}
}

// clientSite is where a client's programs run: beside a gateway, with the
// store's name leading to one address.
type clientSite struct {
	*gatewayHome
	port string
}

func newClientSite(t *testing.T, g *rig, address string) *clientSite {
	t.Helper()
	s := &clientSite{gatewayHome: g.store.(*gatewayHome)}
	_, s.port, _ = net.SplitHostPort(s.Addr()) // the gateway's own
	hosts := fmt.Sprintf("127.0.0.1 localhost lab\n%s %s data.%s\n", address, storeName, storeName)
	for path, text := range map[string][]byte{
		"/etc/hosts": []byte(hosts), "/lab/in/big": blob(20<<20+5, "big"), "/lab/in/small file+1": blob(70_001, "small"), "/lab/in/empty": nil,
	} {
		if err := os.MkdirAll(s.File("/lab/in"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.File(path), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// serve lets the front listen at the gateway's own port.
func (s *clientSite) serve(t *testing.T, g *rig) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", s.port))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: g.front}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { _ = server.Close() })
}

var clientTimes = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00)?`)

// run runs a script and returns all that it said, without times.
func (s *clientSite) run(t *testing.T, script string) string {
	t.Helper()
	preamble := "set -eu; exec 2>&1; rm -rf /lab/out; mkdir -p /lab/out; cd /lab/out\n"
	said, err := s.Run(t.Context(), []string{
		"AWS_ACCESS_KEY_ID=job", "AWS_SECRET_ACCESS_KEY=jobsecret", "AWS_DEFAULT_REGION=us-east-1", "AWS_EC2_METADATA_DISABLED=true",
		"URL=http://" + storeName + ":" + s.port, "HOSTPORT=" + storeName + ":" + s.port,
	}, "/bin/sh", "-c", preamble+script)
	if err != nil {
		t.Errorf("%v: %s", err, said)
	}
	said = strings.ReplaceAll(said, s.port, "PORT")
	return clientTimes.ReplaceAllString(said, "TIME")
}

func clientScripts() map[string]string {
	return map[string]string{
		"aws": `
			aws() { command aws --endpoint-url "$URL" "$@"; }
			for f in big "small file+1" empty; do aws s3 cp --no-progress "/lab/in/$f" "s3://data/aws/$f"; done
			aws s3 ls --recursive s3://data/aws/
			aws s3api head-object --bucket data --key aws/big --query '[ContentLength,ETag,ContentType]' --output text
			aws s3api get-object --bucket data --key aws/big --range bytes=100-5000100 range --query '[ContentLength,ContentRange,ETag]' --output text
			aws s3api get-object --bucket data --key "aws/small file+1" --range bytes=-17 tail --query ContentRange --output text
			for i in 1 2 3; do
				aws s3 cp --no-progress s3://data/aws/big big; aws s3 cp --no-progress "s3://data/aws/small file+1" small
				aws s3 cp --no-progress s3://data/aws/empty empty; sha256sum *; rm big small empty
			done
			aws s3 cp --no-progress s3://data/aws/big s3://data/aws/copy
			aws s3 rm s3://data/aws/big
			aws s3api head-object --bucket data --key aws/big || echo none
			aws s3 sync --no-progress s3://data/aws/ all | sort; (cd all && find . -type f | sort | xargs -d '\n' sha256sum)
			aws s3 presign s3://data/aws/copy >signed; for i in 1 2; do python3 -c 'import sys, urllib.request as u, hashlib; print(hashlib.sha256(u.urlopen(sys.argv[1]).read()).hexdigest())' "$(cat signed)"; done
			aws s3 cp --no-progress s3://data/aws/none none || echo none
			AWS_ACCESS_KEY_ID=stranger AWS_SECRET_ACCESS_KEY=strangersecret aws s3 cp --no-progress s3://data/aws/copy none || echo refused
			AWS_SECRET_ACCESS_KEY=wrong aws s3 ls s3://data/ || echo refused`,
		"s3cmd, virtual-host style": `
			s3cmd() { command s3cmd --host="$HOSTPORT" --host-bucket="%(bucket)s.$HOSTPORT" --no-ssl --no-progress --access_key=job --secret_key=jobsecret --region=us-east-1 --multipart-chunk-size-mb=5 "$@"; }
			s3cmd -q put /lab/in/big "/lab/in/small file+1" /lab/in/empty s3://data/s3cmd/
			s3cmd ls -r s3://data/s3cmd/
			for i in 1 2 3; do s3cmd -q get --force s3://data/s3cmd/big "s3://data/s3cmd/small file+1" s3://data/s3cmd/empty .; sha256sum *; done
			head -c 3000000 big >part && s3cmd -q get --continue s3://data/s3cmd/big part && sha256sum part
			s3cmd -q cp "s3://data/s3cmd/small file+1" s3://data/s3cmd/copy
			s3cmd -q del s3://data/s3cmd/big
			s3cmd ls s3://data/s3cmd/
			s3cmd -q get s3://data/s3cmd/big none || echo none
			s3cmd -q --access_key=stranger --secret_key=strangersecret get s3://data/s3cmd/copy none || echo refused`,
		"rclone": `
			export RCLONE_CONFIG_L_TYPE=s3 RCLONE_CONFIG_L_PROVIDER=Ceph RCLONE_CONFIG_L_ENDPOINT="$URL" RCLONE_CONFIG_L_ACCESS_KEY_ID=job \
				RCLONE_CONFIG_L_SECRET_ACCESS_KEY=jobsecret RCLONE_CONFIG_L_REGION=us-east-1 RCLONE_S3_CHUNK_SIZE=5M RCLONE_S3_UPLOAD_CUTOFF=6M RCLONE_S3_NO_CHECK_BUCKET=true
			rclone() { command rclone --config /dev/null --log-level ERROR "$@"; }
			rclone copy /lab/in L:data/rclone
			rclone check /lab/in L:data/rclone && echo checked
			rclone lsf -R --format ps L:data/rclone | sort
			for i in 1 2; do rclone copyto L:data/rclone/big big; rclone copyto "L:data/rclone/small file+1" small; sha256sum *; rm big small; done
			rclone cat --offset 1000 --count 6000000 L:data/rclone/big | sha256sum
			rclone copyto L:data/rclone/big L:data/rclone/copy
			rclone deletefile L:data/rclone/big
			rclone lsf L:data/rclone | sort
			RCLONE_CONFIG_L_ACCESS_KEY_ID=stranger RCLONE_CONFIG_L_SECRET_ACCESS_KEY=strangersecret rclone cat --retries 1 --low-level-retries 1 L:data/rclone/copy >none 2>&1 || echo refused; wc -c <none`,
		"boto3": `python3 -c '
import boto3, hashlib, os, botocore
from boto3.s3.transfer import TransferConfig
s = boto3.client("s3", endpoint_url=os.environ["URL"])
small = TransferConfig(multipart_threshold=5<<20, multipart_chunksize=5<<20)
for f in ["big", "small file+1", "empty"]:
    s.upload_file("/lab/in/" + f, "data", "boto3/" + f, Config=small, ExtraArgs={"Metadata": {"owner": "vision"}, "ContentType": "application/x-test"})
s.put_object(Bucket="data", Key="boto3/caf\u00e9 %2F+", Body=b"odd")
for page in s.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix="boto3/", PaginationConfig={"PageSize": 2}):
    for o in page["Contents"]: print(o["Key"], o["Size"], o["ETag"])
for i in range(3):
    for k in ["big", "small file+1", "empty", "caf\u00e9 %2F+"]:
        o = s.get_object(Bucket="data", Key="boto3/" + k)
        print(k, o["ContentLength"], o["ETag"], o["ContentType"], o["Metadata"], hashlib.sha256(o["Body"].read()).hexdigest())
    o = s.get_object(Bucket="data", Key="boto3/big", Range="bytes=5-5000000")
    print(o["ContentRange"], hashlib.sha256(o["Body"].read()).hexdigest())
    s.download_file("data", "boto3/big", "big", Config=small)
    print(hashlib.sha256(open("big", "rb").read()).hexdigest())
s.copy({"Bucket": "data", "Key": "boto3/big"}, "data", "boto3/copy", Config=small)
s.copy_object(Bucket="data", Key="boto3/empty", CopySource={"Bucket": "data", "Key": "boto3/empty"}, MetadataDirective="REPLACE", Metadata={"owner": "audio"})
for i in range(2): print(s.get_object(Bucket="data", Key="boto3/empty")["Metadata"])
print(sorted(d["Key"] for d in s.delete_objects(Bucket="data", Delete={"Objects": [{"Key": "boto3/big"}, {"Key": "boto3/none"}]})["Deleted"]))
import urllib.request
link = s.generate_presigned_url("get_object", Params={"Bucket": "data", "Key": "boto3/copy"})
for i in range(2): print(hashlib.sha256(urllib.request.urlopen(link).read()).hexdigest())
stranger = boto3.client("s3", endpoint_url=os.environ["URL"], aws_access_key_id="stranger", aws_secret_access_key="strangersecret")
for call in [lambda: s.get_object(Bucket="data", Key="boto3/big"), lambda: stranger.get_object(Bucket="data", Key="boto3/copy"), lambda: s.get_object(Bucket="data", Key="boto3/copy", Range="bytes=99999999-"),
        lambda: s.get_object(Bucket="data", Key="boto3/copy", IfMatch="nope"), lambda: s.get_object(Bucket="other", Key="x")]:
    try: call(); print("no error")
    except botocore.exceptions.ClientError as e: print(e.response["Error"]["Code"], e.response["ResponseMetadata"]["HTTPStatusCode"])
'`,
	}
}

// sdkCalls does with aws-sdk-go-v2 what a job does, and returns what it got.
func sdkCalls(t *testing.T, addr string, options func(*awss3.Options)) string {
	t.Helper()
	c := awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + storeName), UsePathStyle: true, RetryMaxAttempts: 1,
		HTTPClient: &http.Client{Transport: dialTo(addr)},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "job", SecretAccessKey: "jobsecret"}, nil
		}),
	}, options)
	ctx, bucket := t.Context(), aws.String("data")
	var out strings.Builder
	var oops interface{ ErrorCode() string }
	say := func(what string, err error, format string, args ...any) {
		switch {
		case err == nil:
			fmt.Fprintf(&out, what+": "+format+"\n", args...)
		case errors.As(err, &oops):
			fmt.Fprintf(&out, "%s: error %s\n", what, oops.ErrorCode())
		default:
			fmt.Fprintf(&out, "%s: another error\n", what)
			t.Log(err)
		}
	}
	for _, key := range []string{"sdk/small file+1", "sdk/empty"} {
		body := blob(70_001, "sdk")
		if strings.HasSuffix(key, "empty") {
			body = nil
		}
		put, err := c.PutObject(ctx, &awss3.PutObjectInput{Bucket: bucket, Key: aws.String(key), Body: bytes.NewReader(body), Metadata: map[string]string{"owner": "vision"}})
		if err != nil {
			say("put", err, "")
			continue
		}
		say("put", nil, "%s", *put.ETag)
		for range 3 {
			got, err := c.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: aws.String(key)})
			if err != nil {
				say("get", err, "")
				continue
			}
			data, err := io.ReadAll(got.Body)
			say("get", err, "%v %d %s %v", bytes.Equal(data, body), *got.ContentLength, *got.ETag, got.Metadata)
		}
	}
	up, err := c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: bucket, Key: aws.String("sdk/multi")})
	say("create", err, "")
	if err == nil {
		var parts []awstypes.CompletedPart
		for i := range int32(3) {
			p, err := c.UploadPart(ctx, &awss3.UploadPartInput{Bucket: bucket, Key: aws.String("sdk/multi"), UploadId: up.UploadId, PartNumber: aws.Int32(i + 1), Body: bytes.NewReader(blob(5<<20, "p"))})
			say("part", err, "")
			if err == nil {
				parts = append(parts, awstypes.CompletedPart{PartNumber: aws.Int32(i + 1), ETag: p.ETag})
			}
		}
		done, err := c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{Bucket: bucket, Key: aws.String("sdk/multi"), UploadId: up.UploadId, MultipartUpload: &awstypes.CompletedMultipartUpload{Parts: parts}})
		if err != nil {
			say("complete", err, "")
		} else {
			say("complete", nil, "%s", *done.ETag)
		}
	}
	for range 2 {
		part, err := c.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: aws.String("sdk/multi"), Range: aws.String("bytes=7-6000000")})
		if err != nil {
			say("range", err, "")
			continue
		}
		data, err := io.ReadAll(part.Body)
		say("range", err, "%d %s", len(data), *part.ContentRange)
	}
	_, err = c.CopyObject(ctx, &awss3.CopyObjectInput{Bucket: bucket, Key: aws.String("sdk/copy"), CopySource: aws.String("data/sdk/small%20file%2B1")})
	say("copy", err, "")
	_, err = c.DeleteObject(ctx, &awss3.DeleteObjectInput{Bucket: bucket, Key: aws.String("sdk/multi")})
	say("delete", err, "")
	_, err = c.GetObject(ctx, &awss3.GetObjectInput{Bucket: bucket, Key: aws.String("sdk/multi")})
	say("get the deleted", err, "")
	list, err := c.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{Bucket: bucket, Prefix: aws.String("sdk/")})
	if err == nil {
		for _, o := range list.Contents {
			fmt.Fprintln(&out, *o.Key, *o.Size, *o.ETag)
		}
	}
	return out.String()
}
