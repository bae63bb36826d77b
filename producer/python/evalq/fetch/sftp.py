"""fsspec's SFTP, for hosts whose key is known: fsspec itself would accept any host."""

from __future__ import annotations

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem


class VerifiedSftp(SFTPFileSystem):  # type: ignore[misc]
    """Refuses a host whose key is not in ~/.ssh/known_hosts."""

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(self.host, **dict(self.ssh_kwargs, timeout=10, banner_timeout=30, auth_timeout=30))
        self.ftp = self.client.open_sftp()
