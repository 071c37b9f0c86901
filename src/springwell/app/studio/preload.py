"""What the forked processes of the studio have imported before their first job."""

import springwell.app.api
import springwell.app.studio.images
import springwell.app.studio.plane
import springwell.app.studio.runs  # noqa: F401
