"""Nova's fake hypervisor, with troubles on order.

The file /run/lab-orders holds one order a line; the next spawn or destroy that
an order concerns takes it: "abort" ends the build for good, "spawn N" and
"destroy N" take N seconds.
"""
import fcntl
import time

from nova import exception
from nova.virt import fake

ORDERS = '/run/lab-orders'


def take(*words):
    """Take the first order that begins with one of the words."""
    try:
        with open(ORDERS, 'r+') as orders:
            fcntl.flock(orders, fcntl.LOCK_EX)
            lines = orders.read().split('\n')
            for line in lines:
                if line.split(' ')[0] in words:
                    lines.remove(line)
                    orders.seek(0)
                    orders.truncate()
                    orders.write('\n'.join(lines))
                    return line.split(' ')
    except FileNotFoundError:
        pass
    return ['']


class LabDriver(fake.FakeDriver):

    def spawn(self, context, instance, *args, **kwargs):
        order = take('abort', 'spawn')
        if order[0] == 'abort':
            raise exception.BuildAbortException(
                instance_uuid=instance.uuid, reason='the disk of the host is broken')
        if order[0] == 'spawn':
            time.sleep(int(order[1]))
        super().spawn(context, instance, *args, **kwargs)

    def destroy(self, context, instance, *args, **kwargs):
        order = take('destroy')
        if order[0] == 'destroy':
            time.sleep(int(order[1]))
        super().destroy(context, instance, *args, **kwargs)
