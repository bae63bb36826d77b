"""fsspec's SFTP, but only for hosts whose key is known. fsspec itself accepts any host."""

from __future__ import annotations

import threading

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

_SILENCE_SECONDS = 30.0


class VerifiedSftp(SFTPFileSystem):  # type: ignore[misc]
    """Refuses a host whose key is not in ~/.ssh/known_hosts. Each thread has its own channel,
    because paramiko's channels serve only one thread each."""

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(self.host, **dict(self.ssh_kwargs, timeout=10, banner_timeout=30, auth_timeout=30))
        self._channels = threading.local()

    @property
    def ftp(self) -> paramiko.SFTPClient:
        if not hasattr(self._channels, "ftp"):
            self._channels.ftp = self.client.open_sftp()
            self._channels.ftp.get_channel().settimeout(_SILENCE_SECONDS)
        return self._channels.ftp
