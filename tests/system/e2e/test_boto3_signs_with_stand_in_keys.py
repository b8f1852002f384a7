"""boto3 signs with the stand-in keys of its environment; AWS sees requests that the real keys signed."""

from tests.daemon import TestDaemon
from tests.system.e2e.aws_origin import AwsOrigin, aws_keys
from tests.system.e2e.inside import Inside

S3 = """
import io, boto3
s3 = boto3.client("s3", region_name="eu-central-1")
s3.put_object(Bucket="stories", Key="a b/one.txt", Body=b"once upon a time")
s3.put_object(Bucket="stories", Key="stream.bin", Body=io.BytesIO(b"z" * 100_000))
answer = s3.get_object(Bucket="stories", Key="a b/one.txt")
print("got", answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"])
print("part", s3.get_object(Bucket="stories", Key="stream.bin", Range="bytes=0-9")["ResponseMetadata"])
print("listed", [item["Key"] for item in s3.list_objects_v2(Bucket="stories")["Contents"]])
s3.upload_fileobj(io.BytesIO(b"y" * 10), "stories", "managed.bin")
"""

SQS = """
import boto3
sqs = boto3.client("sqs", region_name="eu-central-1")
url = "https://sqs.eu-central-1.amazonaws.com/123456789012/queue"
import hashlib
try:
    print(sqs.send_message(QueueUrl=url, MessageBody="hello")["MessageId"])
except Exception as error:
    print(type(error).__name__, error)
"""

ELSEWHERE = """
import boto3, botocore.exceptions
from botocore.config import Config
s3 = boto3.client("s3", region_name="eu-central-1", config=Config(retries={"total_max_attempts": 1}),
                  aws_secret_access_key="w" * 40, aws_access_key_id="AKIA" + "A" * 16)
try:
    s3.get_object(Bucket="stories", Key="one.txt")
except botocore.exceptions.ClientError as error:
    print(error.response["ResponseMetadata"]["HTTPStatusCode"])
"""


async def test_s3_put_get_list(client: Inside, aws: AwsOrigin) -> None:
    """Plain, streamed with a trailing checksum, ranged, listed, and by the transfer manager."""
    output = await client.python(S3)
    assert aws.refused == []
    assert len(aws.taken) == 6
    assert aws.objects["a b/one.txt"] == b"once upon a time"
    assert aws.objects["stream.bin"] == b"z" * 100_000
    assert aws.objects["managed.bin"] == b"y" * 10
    assert "got b'once upon a time'" in output and "'stream.bin'" in output


async def test_sqs_send_message(client: Inside, aws: AwsOrigin) -> None:
    """A service whose signature covers the body."""
    output = await client.python(SQS)
    assert "m-1" in output, output
    assert aws.refused == [] and aws.messages[0]["MessageBody"] == "hello"


async def test_keys_that_are_no_stand_ins_are_refused(
    client: Inside, aws: AwsOrigin, daemon: TestDaemon
) -> None:
    """What the sandbox signs with keys of its own choice does not leave, so it cannot exfiltrate to an
    account of its own (the same host serves everybody's buckets)."""
    output = await client.python(ELSEWHERE)
    assert "\n401\n" in "\n" + output, output
    assert aws.taken == [] and aws.refused == []
    assert daemon.decisions()[-1]["reason"] in ("handle_missing", "signature_refused")


async def test_the_sandbox_knows_nothing_of_the_real_pair(client: Inside) -> None:
    """Neither half stands in the environment, and the stand-in id looks like what it is."""
    held = "\n".join(client.environment.values())
    assert not any(half in held for half in aws_keys())
    assert client.environment["AWS_ACCESS_KEY_ID"].startswith("CCHA")
