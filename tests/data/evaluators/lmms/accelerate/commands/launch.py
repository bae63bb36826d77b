"""python -m accelerate.commands.launch: N processes of one evaluation with the variables of torch.distributed. For tests."""
import argparse
import os
import subprocess
import sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--num_processes", type=int, required=True)
parser.add_argument("--num_machines", type=int, default=1)
parser.add_argument("--main_process_port", required=True)
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--multi_gpu", action="store_true")
parser.add_argument("-m", dest="module", required=True)
options, rest = parser.parse_known_args()
if any(name in os.environ for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID")):
    sys.exit("a variable of somebody else's job is set")
shared = dict(os.environ, WORLD_SIZE=str(options.num_processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=options.main_process_port)
running = [subprocess.Popen([sys.executable, "-m", options.module, *rest], env=dict(shared, RANK=str(rank)))
           for rank in range(options.num_processes)]
sys.exit(max(process.wait() for process in running))
