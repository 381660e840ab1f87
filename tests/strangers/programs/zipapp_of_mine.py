"""An application that is shipped as one file: the dataset's class is inside of the zip."""

import subprocess
import sys
import zipapp
from pathlib import Path

Path("app").mkdir()
Path("app/data.py").write_text("class Data:\n    def __len__(self): return 8\n    def __getitem__(self, i): return i\n")
Path("app/__main__.py").write_text(
    "import penstock\n"
    "from data import Data\n"
    "class Here(Data):\n"
    "    pass\n"
    "for method in ('fork', 'spawn', 'forkserver'):\n"
    "    for data in (Data(), Here()):\n"
    "        loader = penstock.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=method)\n"
    "        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]\n"
    "print('ok')\n"
)
zipapp.create_archive("app", "app.pyz")
ended = subprocess.run([sys.executable, "app.pyz"], capture_output=True, text=True)
assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", ""), ended
