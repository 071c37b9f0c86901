"""What the forked processes of the studio have imported before their first job."""

# torch imports its compiler the first time that a device is a context, which loading a model does; that takes seconds.
import torch._dynamo  # noqa: F401

import springwell.app.api
import springwell.app.studio.downloads
import springwell.app.studio.images
import springwell.app.studio.plane
import springwell.app.studio.runs  # noqa: F401
